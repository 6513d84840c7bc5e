"""A model of a tenant's own: the pretrained model with every parameter fine-tuned on one task.

It is what an hPLM is measured by, and what it may learn from (`--teacher dedicated`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backends.adapters.head import Head
from backends.root.geometry import RootGeometry
from backends.root.tokenizer import RootTokenizer, TokenRows
from builder.construct.hplm.padded_pooling import POOL_FUNCTIONS
from builder.construct.hplm.trainable import Indices, OnRows, predict, read
from builder.construct.hplm.trainer import BestWeights, Trainer, Weights
from builder.construct.hplm.tunable import pooled_width, pooling_for
from builder.construct.root.conversion import padding_exchange
from builder.construct.root.pretrained import load_pretrained
from builder.construct.tasks.examples import Example, task_text
from builder.construct.tasks.objective import Objective
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import CPU, device_of
from builder.construct.training.rows import padded_length, segments_of
from builder.progress import Report, Step
from builder.settings.hplm import TuneSettings

_READ_AT_ONCE = 512
_PHASE, _ANSWERING = "fine-tune a whole model", "ask it for its answers"
FINE_TUNING = TuneSettings(learning_rate=1e-4, head_learning_rate=1e-3, epochs=6)
"""Settings that suit most tasks when all parameters learn."""


@dataclass(frozen=True)
class TokenSet:
    """Examples as token rows, with what the task wants of each."""

    rows: TokenRows
    targets: Sequence[Any]
    max_tokens: int

    @property
    def lengths(self) -> Indices:
        return self.rows.lengths

    def padded(self, indices: Indices, device: torch.device) -> tuple[Tensor, Tensor]:
        """Token and type ids `[B, L, 2]`, and the segment of each token (`segments_of`)."""
        lengths = self.lengths[indices]
        length = padded_length(lengths, self.max_tokens)
        mask = np.arange(length) < lengths[:, None]
        flat = np.concatenate([np.arange(*self.rows.row_offsets[index : index + 2]) for index in indices])
        inputs = np.zeros((*mask.shape, 2), np.int64)
        inputs[mask] = np.stack([self.rows.token_ids[flat], self.rows.type_ids[flat]], axis=1)
        segments = segments_of(lengths, [self.rows.middles[index] for index in indices], length)
        return torch.from_numpy(inputs).to(device), segments.to(device)


class DedicatedModel(nn.Module):
    """The pretrained model as the library runs it, with a linear head; `scale` as in `TunableHplm`."""

    def __init__(
        self, folder: Path, geometry: RootGeometry, num_outputs: int, pooling: str, scale: tuple[float, float]
    ) -> None:
        super().__init__()
        self.pretrained: nn.Module = load_pretrained(folder)
        self.head = nn.Linear(pooled_width(pooling, geometry.hidden_size), num_outputs)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("_own_ids", padding_exchange(geometry), persistent=False)
        self._pool = POOL_FUNCTIONS[pooling]
        self._offset, self._factor = scale
        self._has_types = getattr(self.pretrained.config, "type_vocab_size", 0) > 1
        for name, parameter in self.pretrained.named_parameters():
            parameter.requires_grad_(not name.startswith("pooler"))

    def forward(self, inputs: Tensor, segments: Tensor) -> Tensor:
        """`[B, L, 2]` and `[B, L]` → `[B, C]`, or `[B, L, C]` without pooling."""
        return self.answer(self.read(inputs, segments))

    def read(self, inputs: Tensor, segments: Tensor) -> Tensor:
        ids, types = inputs.unbind(dim=-1)
        own_ids: Tensor = self.get_buffer("_own_ids")[ids]
        more = {"token_type_ids": types} if self._has_types else {}
        states = self.pretrained(input_ids=own_ids, attention_mask=(segments > 0).long(), **more).last_hidden_state
        with torch.autocast(inputs.device.type, enabled=False):
            return self._pool(states, segments).float()

    def answer(self, states: Tensor) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):
            raw: Tensor = self.head(states)
            return raw * self._factor + self._offset

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}


@dataclass(frozen=True)
class Dedicated:
    """A fine-tuned model; `best` says from which epoch it is and what it reached on the dev file."""

    model: DedicatedModel
    tokenizer: RootTokenizer
    objective: Objective[Any]
    best: BestWeights

    @classmethod
    def fine_tune(
        cls,
        folder: Path,
        geometry: RootGeometry,
        tokenizer: RootTokenizer,
        objective: Objective[Any],
        train: Sequence[Example],
        dev: Sequence[Example],
        settings: TuneSettings,
        report: Report,
        checkpoint: Checkpoint | None = None,
        device: torch.device = CPU,
    ) -> Dedicated:
        settings = replace(settings, ema_decay=0.0)  # the model's own weights are measured below
        torch.manual_seed(settings.seed)
        pooling = pooling_for(objective, settings)
        model = DedicatedModel(folder, geometry, objective.num_outputs, pooling, objective.scale).to(device)
        dev_set = token_set(tokenizer, objective, dev)

        def measure(weights: Weights) -> dict[str, float]:
            return _scores(model, objective, dev_set)

        train_set = token_set(tokenizer, objective, train)
        best = Trainer(model, objective, train_set, measure, settings, _PHASE).run(report, checkpoint)
        model.load_state_dict(best.weights, strict=False)
        return cls(model, tokenizer, objective, best)

    def read(self, examples: Sequence[Example], report: Report | None = None) -> Iterator[Tensor]:
        """Read each text as the head does: `[m, P]`. Some hundred at a time: a state of each word is gigabytes."""

        def noted(start: int) -> OnRows | None:
            return (lambda done, _: report(Step(_ANSWERING, start + done, len(examples)))) if report else None

        for start in range(0, len(examples), _READ_AT_ONCE):
            dataset = self._encoded(examples[start : start + _READ_AT_ONCE])
            yield from read(self.model, self.objective, dataset, device_of(self.model), noted(start))

    @property
    def head(self) -> Head:
        """The classification before the task's scale is applied."""
        return Head(self.model.head.weight.detach().cpu(), self.model.head.bias.detach().cpu())

    def evaluate(self, examples: Sequence[Example]) -> dict[str, float]:
        return _scores(self.model, self.objective, self._encoded(examples))

    def _encoded(self, examples: Sequence[Example]) -> TokenSet:
        return token_set(self.tokenizer, self.objective, examples)


def token_set(tokenizer: RootTokenizer, objective: Objective[Any], examples: Sequence[Example]) -> TokenSet:
    rows = tokenizer.encode([task_text(example) for example in examples], [objective.about_words] * len(examples))
    return TokenSet(rows, objective.targets(examples, rows.words), tokenizer.max_tokens)


def _scores(model: DedicatedModel, objective: Objective[Any], dataset: TokenSet) -> dict[str, float]:
    return objective.metrics(predict(model, objective, dataset, device_of(model)), dataset.targets)

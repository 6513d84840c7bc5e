"""What each upper layer reads of a task's texts, once an hPLM has been tuned for it: all that early heads need."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backends.adapters.bank import HEAD_DTYPE, HplmArtifact
from backends.adapters.head import Head
from backends.engine.stack import UpperStack
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.tasks.cut import cut_task
from bench.tasks.data import Caps
from bench.tasks.shared_tuning import tuned_task
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.trainable import Indices, of_rows
from builder.construct.hplm.tune import EncodedSet, Tuned, Upper
from builder.construct.tasks.examples import Example
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import TrainedTexts, hashes_of
from builder.levels.answers import StepAnswers
from builder.levels.early_head import MOST_ANSWERS, HeadData, fit_early_head
from builder.levels.learned_texts import LearnedTexts
from builder.levels.served import answered_rows
from builder.levels.served_stack import served_stack
from builder.progress import Report, Step
from builder.requests.domains import GENERAL_DOMAIN
from builder.settings.hplm import TuneSettings

_FP16_BYTES = 2
_LEARNED = "learned"
_TIMED_TEXTS = 128


@dataclass(frozen=True)
class Read:
    """Texts through the layers of an hPLM.

    Shape: states `[m, U, P]` of each row, as a head after each layer reads them
    """

    states: Sequence[Tensor]
    targets: Sequence[Any]

    def after(self, layer: int) -> list[Tensor]:
        return [row[:, layer - 1] for row in self.states]

    def only(self, rows: Indices) -> Read:
        return Read([self.states[row] for row in rows], [self.targets[row] for row in rows])


def strict_rows(train: Sequence[Example], dev: Sequence[Example]) -> Indices:
    """Return the dev texts that certify: none that was trained on, and none twice."""
    _, first = np.unique(hashes_of(dev), return_index=True)
    known = TrainedTexts.of(train).are_among(dev)
    return np.array([row for row in np.sort(first) if not known[row]])


def read_each_layer(
    upper: Upper, objective: Objective[Any], tuned: Tuned, texts: EncodedSet, name: str, report: Report
) -> Read:
    model = upper.model(tuned)
    model.train(False)

    def on_rows(done: int, total: int) -> None:
        report(Step(f"read the {name} texts", done, total))

    flat = of_rows(model.read_each, objective, texts, upper.device, on_rows)
    num_layers = upper.geometry.num_upper_layers
    return Read([row.view(len(row), num_layers, -1) for row in flat], texts.targets)


class OneRoot:
    """A root, and how hPLMs of tasks are tuned on it."""

    def __init__(
        self, home: Home, name: str, data: Path, caps: Caps, tuning: TuneSettings, device: torch.device, early: bool
    ) -> None:
        self.home, self.data, self.caps, self.tuning, self.early = home, data, caps, tuning, early
        self.root = RootFolder(home.root(name))
        self.upper = Upper(self.root.upper().to(device), self.root.geometry)
        self.domain = Registry.open(home).domain(name, GENERAL_DOMAIN)

    @property
    def num_layers(self) -> int:
        return self.root.geometry.num_upper_layers


class LayeredTask:
    """An hPLM of one task, and what its layers read of the texts."""

    def __init__(self, of: OneRoot, name: str, report: Report) -> None:
        home = of.home
        cut = cut_task(of.data, name, of.caps, home.path / "cache" / "cut")
        data = cut.read()
        self.name, self.objective = name, objective_of(data)
        if self.objective.num_outputs == 1:
            raise InvalidArgumentError(f"{name} is a regression, whose answers say no confidence")
        sets = {
            split: encoded_set(home, of.domain, self.objective, getattr(data, split), split, report)
            for split in ("dev", "test")
        }
        self._tuned = tuned_task(home, of.domain, cut, of.upper, of.tuning, of.early, report)
        self._learned = LearnedTexts.of(data.train, TrainedTexts.of(data.train), of.root)
        sets[_LEARNED] = encoded_set(home, of.domain, self.objective, self._learned.examples, _LEARNED, report)
        read = {
            split: read_each_layer(of.upper, self.objective, self._tuned, each, split, report)
            for split, each in sets.items()
        }
        self._read = {**read, "dev": read["dev"].only(strict_rows(data.train, data.dev))}
        self._of, self._data, self._texts = of, data, sets["test"]

    @property
    def hplm_bytes(self) -> int:
        return int(self._tuned.adapters.size_bytes + self._tuned.head.size_bytes)

    def full(self, split: str, num_layers: int) -> StepAnswers:
        return self._answers(self._tuned.head, split, num_layers)

    def early(self, head: Head, split: str, after: int) -> StepAnswers:
        return self._answers(head, split, after)

    def head_after(self, layer: int, num_layers: int) -> Head:
        """Fit a head by the hPLM's own answers."""
        return fit_early_head(self._head_data(layer, num_layers))

    @property
    def head_bytes(self) -> int:
        """Bytes of an early head, which is like the hPLM's own."""
        head = self._tuned.head
        return (head.weight.numel() + head.bias.numel()) * _FP16_BYTES

    def read_s_per_text(self, heads: Mapping[int, Head]) -> float:
        """Return what a selection reads a text in: the layers as they are served."""
        tuned, root, texts = self._tuned, self._of.root, self._texts
        artifact = HplmArtifact(
            f"bench/{self.name}",
            root.fingerprint,
            self._data.task,
            self._data.labels,
            tuned.pooling,
            tuned.adapters,
            tuned.head,
            self._data.pair,
        )
        few = range(min(_TIMED_TEXTS, len(texts.targets)))
        timed = EncodedSet(
            [texts.rows[row] for row in few],
            texts.targets[: len(few)],
            texts.lengths[: len(few)],
            texts.middles[: len(few)],
        )
        stack = UpperStack(root, replace(served_stack(self._of.home), num_slots=2))
        began_s = time.monotonic()
        answered_rows(stack, artifact, heads, self.objective, timed, "timed", lambda _: None)
        return (time.monotonic() - began_s) / len(few)

    def learning_s(self, layer: int, num_layers: int, learned_texts: int) -> float:
        """Return how long a head learns from so many texts, drawn from those that are here."""
        data = self._head_data(layer, num_layers)
        texts = len(self._read[_LEARNED].targets)
        count = min(MOST_ANSWERS, round(learned_texts * len(data.labels) / texts))
        drawn = torch.randint(len(data.labels), (count,), generator=torch.Generator().manual_seed(1))
        began_s = time.monotonic()
        fit_early_head(HeadData(data.states[drawn], data.answers[drawn], data.labels[drawn]))
        return time.monotonic() - began_s

    def _head_data(self, layer: int, num_layers: int) -> HeadData:
        read, full = self._read[_LEARNED], self.full(_LEARNED, num_layers)
        labels = self._learned.labels(read.targets, self.objective.num_outputs)
        return HeadData(torch.cat(read.after(layer)), torch.cat(list(full.logits)), labels)

    def _answers(self, head: Head, split: str, after: int) -> StepAnswers:
        read, head = self._read[split], head.to(HEAD_DTYPE).to(torch.float32)  # as it is stored
        logits = [head.logits(states.float()) for states in read.after(after)]
        return StepAnswers.of(self.objective, logits, read.targets)

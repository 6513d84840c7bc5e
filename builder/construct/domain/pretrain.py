"""Further pretraining of a domain: masked texts teach the lower layers, and nothing else changes.

Upper layers, aggregation and word embeddings are shared by all domains of a root, so they stay frozen, and so does the
head while the lower layers learn. An anchor holds the boundary states near those of the layers that learning started
from, because the shared layers and the tables of the parents go with those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.lower import FragmentEncoder
from backends.root.store import RootFolder
from backends.root.tokenizer import RootTokenizer
from builder.construct.domain.masking import MaskedRows, Masking
from builder.construct.domain.mlm import MaskedLanguageModel, MlmHead
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import CPU
from builder.construct.training.loop import Schedule, TrainingLoop
from builder.construct.training.optimiser import ParameterGroup
from builder.construct.training.rows import numbered_batches
from builder.progress import Report
from builder.settings.domain import Pace, PretrainSettings
from builder.settings.seeds import step_seed

_TEXTS_PER_BATCH = 32


@dataclass(frozen=True)
class MaskedTexts:
    """Texts that become masked batches."""

    texts: Sequence[str]
    tokenizer: RootTokenizer
    masking: Masking

    def batches(self, pace: Pace, after_step: int) -> Iterator[MaskedRows]:
        """The rows of each step that is still to be done."""
        steps = range(after_step + 1, pace.steps + 1)
        batches = numbered_batches(self.texts, self.tokenizer, pace.tokens_per_batch, pace.seed, steps)
        for step, batch in zip(steps, batches, strict=True):
            yield self.masking.apply(self.tokenizer.encode(batch), step_seed(pace.seed, step))


class Pretrainer:
    """A root, and the texts of one domain to learn from and to measure with."""

    def __init__(
        self, root: RootFolder, texts: Sequence[str], held_out: Sequence[str], device: torch.device = CPU
    ) -> None:
        self._root, self._device = root, device
        tokenizer = root.tokenizer()
        self._texts = MaskedTexts(texts, tokenizer, Masking(tokenizer, root.geometry))
        self._held_out = held_out

    def train_head(self, pace: Pace, checkpoint: Checkpoint, report: Report) -> MlmHead:
        """A head that reads the root's final states; nothing else learns."""
        with torch.random.fork_rng():
            torch.manual_seed(pace.seed)
            head = MlmHead(self._root.geometry)
        model = self._model(self._root.lower(), head)

        def loss(masked: MaskedRows, step: int) -> Tensor:
            return _mean(model.guess(masked)[0])

        _train(head, "train the masked-LM head", self._texts, loss, pace, checkpoint, report)
        return head.requires_grad_(False).to(CPU)

    def train_lower(
        self, head: MlmHead, start: FragmentEncoder, settings: PretrainSettings, checkpoint: Checkpoint, report: Report
    ) -> tuple[FragmentEncoder, dict[str, Any]]:
        """Lower layers that know the domain, and what held-out texts say about them."""
        lower = copy.deepcopy(start).requires_grad_(True)
        lower.word_embeddings.requires_grad_(False)
        before, after = (self._model(part, head) for part in (start, lower))

        def loss(masked: MaskedRows, step: int) -> Tensor:
            losses, boundary = after.guess(masked)
            anchor = before.boundary(masked.rows)
            return _mean(losses) + settings.anchor * functional.mse_loss(boundary, anchor) / anchor.var()

        _train(lower, "pretrain the lower layers", self._texts, loss, settings.lower, checkpoint, report)
        figures = {
            "pretrain_steps": settings.lower.steps,
            "mlm_loss_before": self._held_out_loss(before),
            "mlm_loss_after": self._held_out_loss(after),
            "boundary_cosine": self._boundary_cosine(after),
        }
        return lower.requires_grad_(False).to(CPU), figures

    def _model(self, lower: FragmentEncoder, head: MlmHead) -> MaskedLanguageModel:
        return MaskedLanguageModel(self._root, lower, head, self._device)

    def _held_out_loss(self, model: MaskedLanguageModel) -> float | None:
        """Mean over the hidden tokens of the held-out texts, if any is; always the same tokens are hidden."""
        with torch.no_grad():
            losses = torch.cat([model.guess(masked)[0] for masked in self._held_out_rows()])
        return round(float(losses.mean()), 4) if len(losses) else None

    def _boundary_cosine(self, model: MaskedLanguageModel) -> float:
        """Compare the boundary states of unmasked held-out texts with the root's own."""
        root = self._model(self._root.lower(), model.head)
        cosines = []
        for texts in self._held_out_batches():
            rows = self._texts.masking.unmasked(self._texts.tokenizer.encode(texts))
            cosines.append(functional.cosine_similarity(model.boundary(rows), root.boundary(rows), dim=-1))
        return round(float(torch.cat(cosines).mean()), 4)

    def _held_out_rows(self) -> Iterator[MaskedRows]:
        for seed, texts in enumerate(self._held_out_batches()):
            yield self._texts.masking.apply(self._texts.tokenizer.encode(texts), seed)

    def _held_out_batches(self) -> Iterator[Sequence[str]]:
        for start in range(0, len(self._held_out), _TEXTS_PER_BATCH):
            yield self._held_out[start : start + _TEXTS_PER_BATCH]


def _train(
    learner: nn.Module,
    phase: str,
    texts: MaskedTexts,
    loss: Callable[[MaskedRows, int], Tensor],
    pace: Pace,
    checkpoint: Checkpoint,
    report: Report,
) -> None:
    """Train what of a learner is not frozen."""
    learning = {name: part for name, part in learner.named_parameters() if part.requires_grad}
    group = ParameterGroup(learning, pace.learning_rate, pace.weight_decay)
    schedule = Schedule(
        steps=pace.steps,
        warmup_steps=max(1, round(pace.warmup_share * pace.steps)),
        round_steps=pace.checkpoint_every,
        decay="linear",
        clip_norm=pace.clip_norm,
        seed=pace.seed,
    )
    TrainingLoop(phase, [group], schedule, lambda done: texts.batches(pace, done), loss).run(checkpoint, report)


def _mean(losses: Tensor) -> Tensor:
    """Short batches may hide no token, and then there is nothing to learn."""
    return losses.sum() / max(1, len(losses))

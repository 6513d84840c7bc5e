"""One training on masked texts: a learner, a loss, a pace; resumable, and the same again for the same seed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backends.root.tokenizer import RootTokenizer
from builder.construct.domain.masking import MaskedRows, Masking
from builder.construct.domain.settings import Pace
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.divergence import require_finite
from builder.construct.training.rows import numbered_batches
from builder.progress import Report, Step

LOGGER = logging.getLogger(__name__)
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class MaskedTexts:
    """Where the batches come from."""

    texts: Sequence[str]
    tokenizer: RootTokenizer
    masking: Masking

    def batches(self, pace: Pace, after_step: int) -> Iterator[tuple[int, MaskedRows]]:
        """The steps that are still to be done, each with its rows."""
        steps = range(after_step + 1, pace.steps + 1)
        for step, batch in numbered_batches(self.texts, self.tokenizer, pace.tokens_per_batch, pace.seed, steps):
            yield step, self.masking.apply(self.tokenizer.encode(batch), pace.seed * _SEED_STRIDE + step)


class MaskedTraining:
    """Trains what of a learner is not frozen."""

    def __init__(self, learner: nn.Module, loss: Callable[[MaskedRows], Tensor], pace: Pace) -> None:
        self._learner = learner
        self._loss = loss
        self._pace = pace
        self._trained = {name: part for name, part in learner.named_parameters() if part.requires_grad}
        self._optimiser = torch.optim.AdamW(self._trained.values(), pace.learning_rate, weight_decay=pace.weight_decay)

    def run(self, texts: MaskedTexts, phase: str, checkpoint: Checkpoint, report: Report) -> None:
        """Train to the end, from the checkpoint where there is one."""
        mean = 0.0
        for step, masked in texts.batches(self._pace, self._resume(checkpoint)):
            loss = self._step(masked, step)
            mean = 0.95 * mean + 0.05 * loss if mean else loss
            if step % self._pace.checkpoint_every == 0 or step == self._pace.steps:
                self._save(checkpoint, step)
            report(Step(phase, step, self._pace.steps, f"loss {mean:.3f}"))

    def _step(self, masked: MaskedRows, step: int) -> float:
        for group in self._optimiser.param_groups:
            group["lr"] = self._pace.rate(step)
        loss = self._loss(masked)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._trained.values(), self._pace.clip_norm)
        require_finite(loss, norm, step)
        self._optimiser.step()
        return float(loss.detach())

    def _save(self, checkpoint: Checkpoint, step: int) -> None:
        learner = {name: part.detach() for name, part in self._trained.items()}
        checkpoint.save({"step": step, "learner": learner, "optimiser": self._optimiser.state_dict()})

    def _resume(self, checkpoint: Checkpoint) -> int:
        content = checkpoint.load()
        if content is None:
            return 0
        self._learner.load_state_dict(content["learner"], strict=False)
        self._optimiser.load_state_dict(content["optimiser"])
        LOGGER.info("resuming at step %d of %d", content["step"], self._pace.steps)
        return int(content["step"])

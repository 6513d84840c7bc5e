"""One training on masked texts: a learner, a loss, a pace; resumable, and the same again for the same seed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backends.errors import InvalidArgumentError
from backends.root.tokenizer import RootTokenizer
from builder.construct.domain.masking import MaskedRows, Masking
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.divergence import require_finite
from builder.construct.training.rows import numbered_batches
from builder.construct.training.seeds import require_seed
from builder.progress import Report, Step

LOGGER = logging.getLogger(__name__)
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class Pace:
    """How long and how hard something learns."""

    steps: int
    learning_rate: float
    tokens_per_batch: int = 1024
    weight_decay: float = 0.01
    warmup_share: float = 0.1
    clip_norm: float = 1.0
    seed: int = 23
    checkpoint_every: int = 25

    def __post_init__(self) -> None:
        if min(self.steps, self.tokens_per_batch, self.checkpoint_every) < 1 or self.learning_rate <= 0:
            raise InvalidArgumentError("steps, tokens per batch and learning rate must be positive")
        require_seed(self.seed)

    def rate(self, step: int) -> float:
        """Linear warm-up, then linear down to nothing."""
        warmup = max(1, round(self.warmup_share * self.steps))
        return self.learning_rate * min(step / warmup, (self.steps + 1 - step) / max(1, self.steps + 1 - warmup))


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

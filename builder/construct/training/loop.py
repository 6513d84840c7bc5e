"""The one training loop: optimiser, schedule, clipping, divergence, progress, and checkpoints that end the same.

Usage:
    loop = TrainingLoop("distil", groups, schedule, batches=batches_after, loss=loss, watch=watch)
    seconds = loop.run(checkpoint, report)
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from backends.errors import HplmError
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.optimiser import AdamW, ParameterGroup
from builder.progress import Report, Step

LOGGER = logging.getLogger(__name__)
_LOSS_MEMORY = 0.8
BatchT = TypeVar("BatchT")


class DivergedError(HplmError):
    """A loss or a gradient became NaN or infinite; the weights are those before that step."""


@dataclass(frozen=True)
class Schedule:
    """The number of steps, the rise and fall of the rate, and the rounds after which weights are measured and noted.

    The rate rises linearly over `warmup_steps` and then falls to `final_share` of its peak. Each round begins with a
    random state of its own, so that a training that goes on after any round ends as one that was never interrupted.
    """

    steps: int
    warmup_steps: int
    round_steps: int
    decay: Literal["cosine", "linear"] = "cosine"
    final_share: float = 0.0
    clip_norm: float = 1.0
    seed: int = 0

    def share(self, step: int) -> float:
        """The rate of a step, counted from 1, as a share of its peak."""
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        # A last step at a rate of 0 would learn nothing.
        falling_steps = max(1, self.steps - self.warmup_steps + (0 if self.final_share else 1))
        progress = (step - self.warmup_steps) / falling_steps
        left = 1 - progress if self.decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        return self.final_share + (1 - self.final_share) * left


class Watch:
    """A training's work besides learning; this one does nothing."""

    def begin_round(self) -> None:
        """Called before the first step of each round."""

    def after_step(self, step: int) -> None:
        """Called once the weights have changed."""

    def end_round(self, number: int) -> None:
        """Called before the checkpoint is written; rounds are counted from 1."""

    def goes_on(self, rounds: int) -> bool:
        """Whether another round is worth it after so many."""
        return True

    @property
    def note(self) -> str:
        """Return the progress's note besides the loss."""
        return ""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the watch."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""


class TrainingLoop(Generic[BatchT]):
    """Trains some parameters on numbered batches.

    Args:
        phase: What the progress calls it.
        groups: All that learns.
        schedule: See there.
        batches: The batches of the steps after the one given, each depending on its number only.
        loss: Of a batch and its step; its gradients reach the groups' parameters.
        watch: Measures, averages, and ends the training early.
    """

    def __init__(
        self,
        phase: str,
        groups: Sequence[ParameterGroup],
        schedule: Schedule,
        batches: Callable[[int], Iterator[BatchT]],
        loss: Callable[[BatchT, int], Tensor],
        watch: Watch | None = None,
    ) -> None:
        self._phase, self._schedule, self._batches, self._loss = phase, schedule, batches, loss
        self._watch = watch or Watch()
        self._parameters = {name: one for group in groups for name, one in group.parameters.items()}
        self._optimiser = AdamW(groups)

    def run(self, checkpoint: Checkpoint | None, report: Report) -> float:
        """Train to the end, from the checkpoint where there is one; return the seconds that this took in all.

        Raises:
            DivergedError: With the weights as they were; the checkpoint stays.
        """
        schedule, watch = self._schedule, self._watch
        done, seconds = self._resume(checkpoint)
        clock, mean = _Clock(seconds), _RunningMean()
        is_reported = False
        batches = self._batches(done)
        while done < schedule.steps and watch.goes_on(self._round(done)):
            torch.manual_seed(schedule.seed + self._round(done) + 1)
            watch.begin_round()
            for step in range(done + 1, min(done + schedule.round_steps, schedule.steps) + 1):
                mean.add(self._step(next(batches), step))
                done = step
                if self._ends_round(step):
                    watch.end_round(self._round(step))
                    self._save(checkpoint, step, clock.seconds)
                report(Step(self._phase, step, schedule.steps, f"loss {mean.value:.3f}{watch.note}"))
                is_reported = step == schedule.steps
        if not is_reported:
            report(Step(self._phase, schedule.steps, schedule.steps, watch.note.removeprefix(", ")))
        return clock.seconds

    def _round(self, step: int) -> int:
        """The number of the round that ends at or after a step."""
        return -(-step // self._schedule.round_steps)

    def _ends_round(self, step: int) -> bool:
        return step % self._schedule.round_steps == 0 or step == self._schedule.steps

    def _step(self, batch: BatchT, step: int) -> float:
        loss = self._loss(batch, step)
        self._optimiser.clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self._schedule.clip_norm)
        if not (bool(torch.isfinite(loss)) and (bool(torch.isfinite(norm)) or self._clipped_to_nothing())):
            raise DivergedError(f"the training diverged at step {step}; try a lower learning rate")
        self._optimiser.step(self._schedule.share(step))
        self._watch.after_step(step)
        return float(loss.detach())

    def _clipped_to_nothing(self) -> bool:
        """Whether finite gradients of a norm that overflows have become zeros, which change nothing."""
        gradients = (one.grad for one in self._parameters.values() if one.grad is not None)
        return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    def _save(self, checkpoint: Checkpoint | None, step: int, seconds: float) -> None:
        if checkpoint is None:
            return
        weights = {name: parameter.detach() for name, parameter in self._parameters.items()}
        content = {"step": step, "seconds": seconds, "weights": weights, "watch": self._watch.state()}
        checkpoint.save({**content, "optimiser": self._optimiser.state_dict()})

    def _resume(self, checkpoint: Checkpoint | None) -> tuple[int, float]:
        """The steps that are done, and the seconds that they took."""
        content = checkpoint.load() if checkpoint else None
        if content is None:
            return 0, 0.0
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(content["weights"][name])
        self._optimiser.load_state_dict(content["optimiser"])
        self._watch.restore(content["watch"])
        LOGGER.info("resuming at step %d of %d", content["step"], self._schedule.steps)
        return int(content["step"]), float(content["seconds"])


class _RunningMean:
    """The mean of the last losses, so that the progress does not jump from batch to batch."""

    value: float = 0.0

    def add(self, loss: float) -> None:
        self.value = _LOSS_MEMORY * self.value + (1 - _LOSS_MEMORY) * loss if self.value else loss


class _Clock:
    """Seconds over all runs."""

    def __init__(self, seconds: float) -> None:
        self._seconds_before = seconds
        self._started_s = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started_s

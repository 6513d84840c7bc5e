"""How long the engine is busy: the batch that runs, the one that is staged, and what batches took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backends.scheduling.cost_model import BatchShape
from backends.scheduling.estimator import LiveCosts
from backends.stack_key import StackKey


@dataclass
class BatchFigures:
    """What all batches so far were predicted to take, would be by costs that nothing corrects, and took.

    `student_count_changes` says how often a stack's number of students has changed from one batch to the next.
    """

    batches: int = 0
    predicted_us: float = 0.0
    uncorrected_us: float = 0.0
    measured_us: float = 0.0
    student_count_changes: int = 0

    def note(self, predicted_us: float, uncorrected_us: float, measured_us: float) -> None:
        self.batches += 1
        self.predicted_us += predicted_us
        self.uncorrected_us += uncorrected_us
        self.measured_us += measured_us


@dataclass(frozen=True, slots=True)
class _Running:
    stack: StackKey
    shape: BatchShape
    taken_us: int
    predicted_us: float
    ends_us: float


class BatchClock:
    """Told of each batch from the queue to its end; the stacks' costs learn from it.

    Args:
        costs_of: A stack's costs; the same object every time.
    """

    def __init__(self, costs_of: Callable[[StackKey], LiveCosts]) -> None:
        self.figures = BatchFigures()
        self.finished_us: int | None = None
        self.finished_of: dict[StackKey, int] = {}
        """The same by stack."""
        self.last_us = 0.0
        """The prediction for the batch that began last."""
        self._costs_of = costs_of
        self._taken_us = 0
        self._staged_us = 0.0
        self._running: _Running | None = None

    def taken(self, now_us: int) -> None:
        """Rows have left the queue to be staged."""
        self._taken_us = now_us

    def staged(self, shape: BatchShape | None, stack: StackKey | None) -> None:
        """Tell which batch runs next; None where nothing came of staging."""
        self._staged_us = 0.0 if shape is None or stack is None else self._costs_of(stack).predict_us(shape)

    def began(self, stack: StackKey, shape: BatchShape, now_us: int) -> None:
        """What was staged runs."""
        self._staged_us = 0.0
        predicted_us = self.last_us = self._costs_of(stack).predict_us(shape)
        self._running = _Running(stack, shape, self._taken_us, predicted_us, now_us + predicted_us)

    def finished(self, now_us: int, has_run: bool = True, passed: BatchShape | None = None) -> None:
        """What was running has run, or nothing was left of it to run.

        `passed` is its shape by the layers that its rows passed, where that is known to be another than was likely.

        What a batch took is counted from the end of the one before, or from when it was taken if that was later: with
        all that is not hidden behind other batches.
        """
        running, self._running = self._running, None
        if running is None:
            return
        before_us, self.finished_us = self.finished_us, now_us
        self.finished_of[running.stack] = now_us
        if has_run:
            measured_us = now_us - max(running.taken_us, before_us or running.taken_us)
            costs, shape = self._costs_of(running.stack), passed or running.shape
            self.figures.note(running.predicted_us, costs.uncorrected_us(shape), measured_us)
            costs.observe(shape, measured_us)

    @property
    def is_running(self) -> bool:
        return self._running is not None

    @property
    def is_busy(self) -> bool:
        return self.is_running or self._staged_us > 0

    def busy_us(self, now_us: int) -> float:
        """What is left of the running and of the staged batch; an overdue one is likely to take a while yet."""
        if self._running is None:
            return self._staged_us
        left_us = self._running.ends_us - now_us
        return self._staged_us + (left_us if left_us > 0 else -left_us / 2)

"""How many students run: the most with which what waits meets its deadlines.

The count goes down at once, and up by one where one more would have left half of the time free for a second. So bursts
cost a little accuracy before they cost answers, and a load that swings does not make answers swing.

Usage:
    state = StudentCount.starting(most=3)
    state = state.next(backlog.pressure, now_us)  # whenever a batch starts, which is part of the backlog
    state.count
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from backends.scheduling.waiting_room import Float64

DRAIN_US = 100_000.0
"""Rows without a deadline are to be answered within this time."""
CALM_US = 1_000_000
_CALM_PRESSURE = 0.5
Pressure = Callable[[int], float]
"""(count) → the largest share that a row's wait takes of its time where so many students run; above 1 it is late.

It does not fall as the count grows."""


@dataclass(frozen=True)
class StudentCount:
    """How many students run, of `most`; at `calm_since_us` one more began to leave half of the time free."""

    count: int
    most: int
    calm_since_us: int | None = None

    @classmethod
    def starting(cls, most: int) -> StudentCount:
        return cls(most, most)

    def next(self, pressure: Pressure, now_us: int, idle_since_us: int | None = None) -> StudentCount:
        """Return how many run in the batch that starts now.

        Args:
            pressure: Of each count.
            now_us: The time.
            idle_since_us: When the engine ran out of work before this batch, if it did: it has been calm since then.
        """
        count = self.count
        while count > 1 and pressure(count) > 1.0:
            count -= 1
        if count < self.count:
            return replace(self, count=count, calm_since_us=None)
        since_us = self.calm_since_us
        if since_us is None:
            since_us = now_us if idle_since_us is None else idle_since_us
        while count < self.most and pressure(count + 1) <= _CALM_PRESSURE:
            if now_us - since_us < CALM_US:
                return replace(self, count=count, calm_since_us=since_us)
            count, since_us = count + 1, since_us + CALM_US
        return replace(self, count=count, calm_since_us=None)


@dataclass(frozen=True)
class Backlog:
    """Rows in the order in which they will be answered.

    Attributes:
        work_us: What each row takes, by count.
        overhead_us: What batches take beside the work of their rows, until each row is answered.
        time_us: Time until each row is to be answered.
        margin: Factor on predictions.

    Shape:
        One number for each row.
    """

    work_us: Callable[[int], Float64]
    overhead_us: Float64
    time_us: Float64
    margin: float = 1.0

    def pressure(self, count: int) -> float:
        """Return the largest share that a row's wait takes of its time; infinite where that is over."""
        needs_us = self.margin * (np.cumsum(self.work_us(count)) + self.overhead_us)
        left_us = np.maximum(self.time_us, 0.0)
        return float(np.divide(needs_us, left_us, out=np.full(len(left_us), np.inf), where=left_us > 0).max())

"""Arrivals told apart by how long they leave themselves until their deadlines: who will be due before whom."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from backends.scheduling.policy import Waiting

Floats = npt.NDArray[np.float64]

_AFTER_ALL_DEADLINES_US = float(np.finfo(np.float64).max)


class DueKinds:
    """How long arrivals leave themselves until their deadlines, in classes; the last one is that they have none.

    Args:
        num_kinds: How many, with the last one.
        per_octave: How fine.
        shortest_us: Whatever is due sooner is in the first class.
    """

    def __init__(self, num_kinds: int, per_octave: int, shortest_us: float) -> None:
        self.num_kinds = num_kinds
        self._per_octave = per_octave
        self._shortest_us = shortest_us
        self._due_in_us = np.append(shortest_us * 2 ** ((np.arange(num_kinds - 1) + 0.5) / per_octave), math.inf)

    def kind(self, job: Waiting, now_us: int) -> int:
        if job.deadline_us is None:
            return self.num_kinds - 1
        times = max(1.0, (job.deadline_us - now_us) / self._shortest_us)
        return min(self.num_kinds - 2, int(self._per_octave * math.log2(times)))

    def due_earlier_us(self, job: Waiting, now_us: int, in_us: float) -> Floats:
        """For how much of the next `in_us` arrivals of each kind would be due before a job that arrives now.

        Whoever comes in w and leaves itself x until its deadline is due before a job that is so later than in w + x.
        Those without a deadline are due before nobody, not even each other.

        Shape: `[num_kinds]`.
        """
        due_in_us = _AFTER_ALL_DEADLINES_US if job.deadline_us is None else job.deadline_us - now_us
        return np.minimum(np.maximum(due_in_us - self._due_in_us, 0.0), max(0.0, in_us))

"""A load with bursts that students answered: what was in time, and how many students answered it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backends.student_levels import COUNTS
from bench.kit.fates import Fate, Fates


@dataclass(frozen=True, eq=False)
class Run:
    """One load at one level."""

    fates: Fates
    is_burst: NDArray[np.bool_]
    changes: int
    """How often the number of students changed from one batch to the next."""

    @property
    def in_time(self) -> float:
        """The share in time of the rows that arrived in bursts."""
        return float((self.fates.each[self.is_burst] == str(Fate.ON_TIME)).mean())

    @property
    def quiet_in_time(self) -> float:
        return float((self.fates.each[~self.is_burst] == str(Fate.ON_TIME)).mean())

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many students answered each row; 0 where none did."""
        return np.array([COUNTS.get(level, 0) for level in self.fates.played.requests.levels.tolist()], np.int64)

    def mean_students(self, in_burst: bool) -> float:
        counts = self.counts[(self.is_burst == in_burst) & (self.counts > 0)]
        return float(counts.mean()) if len(counts) else 0.0

    def row(self) -> dict[str, float]:
        return {
            "requests": len(self.is_burst),
            "in bursts": int(self.is_burst.sum()),
            "burst in time": self.in_time,
            "quiet in time": self.quiet_in_time,
            "admitted on time": self.fates.admitted_on_time,
            "students in bursts": self.mean_students(True),
            "students else": self.mean_students(False),
            "changes": self.changes,
            "p50 ms": self.fates.played.latency_ms(50),
            "p99 ms": self.fates.played.latency_ms(99),
        }

"""The time that callers wait for an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workload.checks import check_count, check_positive
from workload.errors import WorkloadError

LONGEST_DEADLINE_MS = 24 * 3600 * 1000
"""Servers reject longer ones."""


class Deadlines(Protocol):
    def draw_ms(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Shape: [count]."""
        ...


@dataclass(frozen=True)
class UniformDeadlines:
    """Uniform between the two, in whole milliseconds, as requests carry them."""

    shortest_ms: int
    longest_ms: int

    def __post_init__(self) -> None:
        check_positive(shortest_ms=self.shortest_ms)
        if self.longest_ms < self.shortest_ms:
            raise WorkloadError(f"deadlines go from the shorter to the longer, not {self}")
        if self.longest_ms > LONGEST_DEADLINE_MS:
            raise WorkloadError(f"a deadline is {LONGEST_DEADLINE_MS} ms away at most, not {self.longest_ms:.6g}")

    def __str__(self) -> str:
        return f"{self.shortest_ms}-{self.longest_ms} ms"

    def draw_ms(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Shape: [count]."""
        check_count(count)
        return rng.integers(self.shortest_ms, self.longest_ms + 1, size=count)


@dataclass(frozen=True, eq=False)
class TraceDeadlines:
    """The deadlines of a trace: those of the replayed requests, drawn independently without a replay.

    Whole milliseconds, as requests carry them. A request that has none is given the longest one.

    Args:
        observed_ms: NaN where a request has none.
    """

    observed_ms: NDArray[np.float64]

    def __post_init__(self) -> None:
        if not np.isfinite(self.observed_ms).any():
            raise WorkloadError("no request of the trace has a deadline")

    def of_ms(self, requests: NDArray[np.int64]) -> NDArray[np.int64]:
        observed_ms = np.nan_to_num(self.observed_ms[requests], nan=LONGEST_DEADLINE_MS)
        return np.maximum(np.rint(observed_ms), 1).astype(np.int64)

    def draw_ms(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        return self.of_ms(rng.integers(len(self.observed_ms), size=count))

"""The lengths of requests, in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workload.checks import MOST_TOKENS, check_count, check_positive
from workload.errors import WorkloadError


class Lengths(Protocol):
    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Shape: [count]."""
        ...


@dataclass(frozen=True)
class NormalLengths:
    """A normal distribution, rounded and clipped; the defaults are those of the TCB paper.

    Mean and standard deviation hold before clipping, which moves the mean of a wide distribution towards the middle.
    """

    standard_deviation: float
    mean: float = 20.0
    shortest: int = 3
    longest: int = 100

    def __post_init__(self) -> None:
        check_positive(standard_deviation=self.standard_deviation, mean=self.mean)
        if not 1 <= self.shortest <= self.longest:
            raise WorkloadError(f"lengths go from 1 or more up, not from {self.shortest} to {self.longest}")

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        drawn = rng.normal(self.mean, self.standard_deviation, count)
        clipped: NDArray[np.int64] = np.clip(np.rint(drawn), self.shortest, self.longest).astype(np.int64)
        return clipped


@dataclass(frozen=True)
class FixedLengths:
    tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise WorkloadError(f"a request has 1 token or more, and {MOST_TOKENS:,} at most, not {self.tokens:.6g}")

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        return np.full(count, self.tokens, np.int64)


@dataclass(frozen=True, eq=False)
class EmpiricalLengths:
    """Observed lengths, drawn independently and cut to `longest`, as models cut their texts."""

    observed: NDArray[np.int64]
    longest: int = 512

    def __post_init__(self) -> None:
        if not len(self.observed):
            raise WorkloadError("no lengths were observed to draw from")
        if self.observed.min() < 1 or self.longest < 1:
            raise WorkloadError("lengths must be 1 token or more")

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        tokens: NDArray[np.int64] = np.minimum(rng.choice(self.observed, count), self.longest).astype(np.int64)
        return tokens


@dataclass(frozen=True, eq=False)
class TraceLengths(EmpiricalLengths):
    """The lengths of a trace: those of the replayed requests, drawn independently without a replay."""

    def of(self, requests: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum(self.observed[requests], self.longest).astype(np.int64)

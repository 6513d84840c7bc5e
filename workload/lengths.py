"""How long requests are, in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workload.checks import MOST_TOKENS, check_count, check_positive
from workload.errors import WorkloadError


class Lengths(Protocol):
    def draw(self, count: int, chance: np.random.Generator) -> NDArray[np.int64]:
        """Shape: [count]."""
        ...


@dataclass(frozen=True)
class NormalLengths:
    """A normal distribution, rounded and clipped: as in the TCB paper, 3 to 100 tokens around 20.

    Mean and standard deviation are those before the clipping: a wide one's mean moves towards the middle of the limits.
    """

    standard_deviation: float
    mean: float = 20.0
    shortest: int = 3
    longest: int = 100

    def __post_init__(self) -> None:
        check_positive(standard_deviation=self.standard_deviation, mean=self.mean)
        if not 1 <= self.shortest <= self.longest:
            raise WorkloadError(f"lengths go from 1 or more up, not from {self.shortest} to {self.longest}")

    def draw(self, count: int, chance: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        drawn = chance.normal(self.mean, self.standard_deviation, count)
        clipped: NDArray[np.int64] = np.clip(np.rint(drawn), self.shortest, self.longest).astype(np.int64)
        return clipped


@dataclass(frozen=True)
class FixedLengths:
    tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise WorkloadError(f"a request has 1 token or more, and {MOST_TOKENS:,} at most, not {self.tokens:.6g}")

    def draw(self, count: int, chance: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        return np.full(count, self.tokens, np.int64)


@dataclass(frozen=True, eq=False)
class EmpiricalLengths:
    """Lengths that were observed, drawn independently.

    What is longer than `longest` counts as that, as a model cuts its texts.
    """

    observed: NDArray[np.int64]
    longest: int = 512

    def __post_init__(self) -> None:
        if not len(self.observed):
            raise WorkloadError("no lengths were observed to draw from")
        if self.observed.min() < 1 or self.longest < 1:
            raise WorkloadError("lengths must be 1 token or more")

    def draw(self, count: int, chance: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        return np.minimum(chance.choice(self.observed, count), self.longest).astype(np.int64)


@dataclass(frozen=True, eq=False)
class TraceLengths(EmpiricalLengths):
    """Of the very requests that are replayed, where there are such."""

    def of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum(self.observed[places], self.longest).astype(np.int64)

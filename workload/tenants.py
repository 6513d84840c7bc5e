"""The tenants of requests, as indices from 0."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workload.checks import check_count, check_positive
from workload.errors import WorkloadError

_MOST_TENANTS = 10_000_000


class Tenants(Protocol):
    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Indices from 0. Shape: [count]."""
        ...


@dataclass(frozen=True)
class UniformTenants:
    tenants: int

    def __post_init__(self) -> None:
        _check_tenants(self.tenants)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        return rng.integers(self.tenants, size=count)


@dataclass(frozen=True)
class ZipfTenants:
    """Tenant k, from 1, has a share in proportion to k ** -exponent."""

    tenants: int
    exponent: float = 1.0

    def __post_init__(self) -> None:
        _check_tenants(self.tenants)
        check_positive(exponent=self.exponent)

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """Shape: [tenants], sums to 1."""
        weights: NDArray[np.float64] = np.arange(1, self.tenants + 1, dtype=np.float64) ** -self.exponent
        return weights / float(weights.sum())

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        bounds = np.cumsum(self.shares)[:-1]
        return np.searchsorted(bounds, rng.random(count), side="right").astype(np.int64)


@dataclass(frozen=True, eq=False)
class EmpiricalTenants:
    """Observed tenants, drawn independently."""

    observed: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.observed):
            raise WorkloadError("no tenants were observed to draw from")
        if self.observed.min() < 0:
            raise WorkloadError("a tenant's index is 0 or more")

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        check_count(count)
        return rng.choice(self.observed, count).astype(np.int64)


@dataclass(frozen=True, eq=False)
class TraceTenants(EmpiricalTenants):
    """The tenants of a trace: those of the replayed requests, drawn independently without a replay."""

    def of(self, requests: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.observed[requests].astype(np.int64)


def _check_tenants(tenants: int) -> None:
    if not 1 <= tenants <= _MOST_TENANTS:
        raise WorkloadError(f"a load has 1 tenant or more, and {_MOST_TENANTS:,} at most, not {tenants:.6g}")

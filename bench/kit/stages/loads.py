"""Requests for two roots: the traffic of AlpaServe's second figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from bench.kit.stages.engine_process import Numbers, Seconds
from builder.placement.planner.traffic import Traffic
from workload.arrivals import Arrivals, GammaArrivals, PoissonArrivals

_SPARE = 1.5
"""Times the mean duration, so that bursty arrivals are enough."""
_FOR_EVER_US = 1 << 50


@dataclass(frozen=True, eq=False)
class Load:
    """Shape: `[requests]` each, in the order of their times."""

    times_s: Seconds
    roots: Numbers

    def times(self, factor: float) -> Load:
        """Return the same requests, this much further apart."""
        return Load(factor * self.times_s, self.roots)

    @property
    def traffic(self) -> Traffic:
        """The same for the planner's simulation; nothing is ever late."""
        arrived_us = (1e6 * self.times_s).astype(np.int64)
        return Traffic(arrived_us, self.roots, arrived_us + _FOR_EVER_US)


@dataclass(frozen=True)
class Shape:
    """Shares of the roots, and how bursty the arrivals for each are."""

    shares: tuple[float, float]
    cv: float = 1.0


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {"poisson": Shape((0.5, 0.5)), "cv3": Shape((0.5, 0.5), 3.0), "skew": Shape((0.2, 0.8))}
)


def drawn(shape: Shape, rate_per_s: float, count: int, rng: np.random.Generator) -> Load:
    """Draw so many requests at a rate."""
    duration_s = _SPARE * count / rate_per_s
    times = [_arrivals(share * rate_per_s, shape.cv).times_s(duration_s, rng) for share in shape.shares]
    return _merged(times, count)


def _arrivals(rate_per_s: float, cv: float) -> Arrivals:
    return PoissonArrivals(rate_per_s) if cv == 1.0 else GammaArrivals(rate_per_s, cv)


def _merged(times: Sequence[Seconds], count: int) -> Load:
    together = np.concatenate(times)
    roots = np.repeat(np.arange(len(times)), [len(of_root) for of_root in times])
    order = np.argsort(together, kind="stable")[:count]
    return Load(together[order], roots[order])

"""A load in columns, drawn at once: what arrives when, how long it is, whose, and until when it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workload.arrivals import Arrivals, Times, TraceArrivals
from workload.deadlines import UniformDeadlines
from workload.errors import WorkloadError
from workload.lengths import Lengths, TraceLengths
from workload.tenants import Tenants, TraceTenants

Int64 = NDArray[np.int64]


class Delays(Protocol):
    def draw_us(self, count: int, chance: np.random.Generator) -> Int64:
        """Shape: [count]."""
        ...


@dataclass(frozen=True)
class ConstantDelay:
    delay_us: int = 0

    def __post_init__(self) -> None:
        if self.delay_us < 0:
            raise WorkloadError(f"a delay is 0 or more, not {self.delay_us} us")

    def draw_us(self, count: int, chance: np.random.Generator) -> Int64:
        return np.full(count, self.delay_us, np.int64)


@dataclass(frozen=True, eq=False)
class ObservedDelays:
    """Drawn independently from what was measured."""

    observed_us: Int64

    def __post_init__(self) -> None:
        if not len(self.observed_us) or self.observed_us.min() < 0:
            raise WorkloadError("delays must have been observed, none of them below 0")

    def draw_us(self, count: int, chance: np.random.Generator) -> Int64:
        return chance.choice(self.observed_us, count)


@dataclass(frozen=True)
class Workload:
    """What a load is drawn from; `retrieval` is what a request needs before it waits for the upper half."""

    arrivals: Arrivals
    lengths: Lengths
    tenants: Tenants
    deadlines: UniformDeadlines | None = None
    retrieval: Delays = ConstantDelay()

    def draw(self, duration_s: float, seed: int) -> SimulatedLoad:
        """Each column has chance of its own, so that another distribution of one changes no other."""
        chances = [np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(5)]
        times_s, places = self._arrivals(duration_s, chances[0])
        arrived_us = (times_s * 1e6).astype(np.int64)
        count = len(arrived_us)
        tokens, tenants = self._tokens(places, count, chances[1]), self._tenants(places, count, chances[2])
        deadlines_us = None
        if self.deadlines is not None:
            deadlines_us = arrived_us + 1_000 * self.deadlines.draw_ms(count, chances[3])
        queued_us = arrived_us + self.retrieval.draw_us(count, chances[4])
        return SimulatedLoad.in_order(duration_s, arrived_us, queued_us, tokens, tenants, deadlines_us)

    def _arrivals(self, duration_s: float, chance: np.random.Generator) -> tuple[Times, Int64 | None]:
        """And of which requests of a trace they are, where one is replayed."""
        if isinstance(self.arrivals, TraceArrivals):
            return self.arrivals.replay(duration_s, chance)
        return self.arrivals.times_s(duration_s, chance), None

    def _tokens(self, places: Int64 | None, count: int, chance: np.random.Generator) -> Int64:
        if places is not None and isinstance(self.lengths, TraceLengths):
            return self.lengths.of(places)
        return self.lengths.draw(count, chance)

    def _tenants(self, places: Int64 | None, count: int, chance: np.random.Generator) -> Int64:
        if places is not None and isinstance(self.tenants, TraceTenants):
            return self.tenants.of(places)
        return self.tenants.draw(count, chance)


@dataclass(frozen=True, eq=False)
class SimulatedLoad:
    """Requests in the order in which they come to the upper half's queue; all times count from the start.

    Without deadlines everything is best effort.

    Shape: [requests] each.
    """

    duration_s: float
    arrived_us: Int64
    queued_us: Int64
    tokens: Int64
    tenants: Int64
    deadlines_us: Int64 | None

    @classmethod
    def in_order(
        cls,
        duration_s: float,
        arrived_us: Int64,
        queued_us: Int64,
        tokens: Int64,
        tenants: Int64,
        deadlines_us: Int64 | None,
    ) -> SimulatedLoad:
        """Who comes to the queue at the same moment is there in the order of arrival."""
        order = np.argsort(queued_us, kind="stable")
        deadlines_us = None if deadlines_us is None else deadlines_us[order]
        return cls(duration_s, arrived_us[order], queued_us[order], tokens[order], tenants[order], deadlines_us)

    def __len__(self) -> int:
        return len(self.arrived_us)

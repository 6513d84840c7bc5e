"""A simulated load as columns: arrival, length, tenant and deadline of each request."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from workload.arrivals import Arrivals, Times, TraceArrivals
from workload.deadlines import Deadlines, TraceDeadlines
from workload.errors import WorkloadError
from workload.lengths import Lengths, TraceLengths
from workload.tenants import Tenants, TraceTenants

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """The distributions of a load.

    Attributes:
        retrieval_us: The delay between arrival and the upper half's queue.
        names: Of the tenants, by their numbers; without any they are told apart by their numbers.
    """

    arrivals: Arrivals
    lengths: Lengths
    tenants: Tenants
    deadlines: Deadlines | None = None
    retrieval_us: int = 0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.retrieval_us < 0:
            raise WorkloadError(f"a retrieval takes 0 us or more, not {self.retrieval_us}")

    def draw(self, duration_s: float, seed: int) -> SimulatedLoad:
        """Draw each column with a generator of its own, so that changing one distribution changes no other column."""
        rngs = [np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(4)]
        times_s, indices = self._arrivals(duration_s, rngs[0])
        arrived_us = (times_s * 1e6).astype(np.int64)
        count = len(arrived_us)
        tokens, tenants = self._tokens(indices, count, rngs[1]), self._tenants(indices, count, rngs[2])
        deadlines_us = None
        if self.deadlines is not None:
            deadlines_us = arrived_us + 1_000 * self._deadlines_ms(self.deadlines, indices, count, rngs[3])
        queued_us = arrived_us + self.retrieval_us
        return SimulatedLoad.in_order(duration_s, arrived_us, queued_us, tokens, tenants, deadlines_us, self.names)

    def _arrivals(self, duration_s: float, rng: np.random.Generator) -> tuple[Times, Int64 | None]:
        """Draw the times; for a replayed trace also the index of each request in it."""
        if isinstance(self.arrivals, TraceArrivals):
            return self.arrivals.replay(duration_s, rng)
        return self.arrivals.times_s(duration_s, rng), None

    def _tokens(self, indices: Int64 | None, count: int, rng: np.random.Generator) -> Int64:
        if indices is not None and isinstance(self.lengths, TraceLengths):
            return self.lengths.of(indices)
        return self.lengths.draw(count, rng)

    def _tenants(self, indices: Int64 | None, count: int, rng: np.random.Generator) -> Int64:
        if indices is not None and isinstance(self.tenants, TraceTenants):
            return self.tenants.of(indices)
        return self.tenants.draw(count, rng)

    @staticmethod
    def _deadlines_ms(deadlines: Deadlines, indices: Int64 | None, count: int, rng: np.random.Generator) -> Int64:
        if indices is not None and isinstance(deadlines, TraceDeadlines):
            return deadlines.of_ms(indices)
        return deadlines.draw_ms(count, rng)


@dataclass(frozen=True, eq=False)
class SimulatedLoad:
    """Requests in the order in which they reach the upper half's queue; all times count from the start.

    Without deadlines all requests are best effort. `tenants` are indices into `names`, where tenants have some.

    Shape: [requests] each, but for the names.
    """

    duration_s: float
    arrived_us: Int64
    queued_us: Int64
    tokens: Int64
    tenants: Int64
    deadlines_us: Int64 | None
    names: tuple[str, ...] = ()

    @classmethod
    def in_order(
        cls,
        duration_s: float,
        arrived_us: Int64,
        queued_us: Int64,
        tokens: Int64,
        tenants: Int64,
        deadlines_us: Int64 | None,
        names: tuple[str, ...] = (),
    ) -> SimulatedLoad:
        """Sort by the time of queueing; simultaneous requests stay in the order of arrival."""
        columns = (duration_s, arrived_us, queued_us, tokens, tenants, deadlines_us, names)
        return cls(*columns)._sorted(np.argsort(queued_us, kind="stable"))

    def by_arrival(self) -> SimulatedLoad:
        """Sort by the time of arrival; simultaneous requests stay in their order."""
        return self._sorted(np.argsort(self.arrived_us, kind="stable"))

    def undelayed(self) -> SimulatedLoad:
        """Have all requests queue when they arrive."""
        return replace(self, queued_us=self.arrived_us)

    def tenant_name(self, tenant: int) -> str:
        return self.names[tenant] if self.names else f"tenant{tenant}"

    def _sorted(self, order: NDArray[np.int64]) -> SimulatedLoad:
        columns = (self.arrived_us, self.queued_us, self.tokens, self.tenants)
        deadlines_us = None if self.deadlines_us is None else self.deadlines_us[order]
        arrived_us, queued_us, tokens, tenants = (column[order] for column in columns)
        return SimulatedLoad(self.duration_s, arrived_us, queued_us, tokens, tenants, deadlines_us, self.names)

    def __len__(self) -> int:
        return len(self.arrived_us)

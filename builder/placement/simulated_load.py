"""A load in columns, drawn at once: what arrives when, how long it is, whose, and until when it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workload.arrivals import Arrivals
from workload.deadlines import UniformDeadlines
from workload.errors import WorkloadError
from workload.lengths import Lengths
from workload.tenants import Tenants

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
        arrived_us = (self.arrivals.times_s(duration_s, chances[0]) * 1e6).astype(np.int64)
        count = len(arrived_us)
        tokens, tenants = self.lengths.draw(count, chances[1]), self.tenants.draw(count, chances[2])
        deadlines_us = None
        if self.deadlines is not None:
            deadlines_us = arrived_us + 1_000 * self.deadlines.draw_ms(count, chances[3])
        queued_us = arrived_us + self.retrieval.draw_us(count, chances[4])
        return SimulatedLoad.in_order(duration_s, arrived_us, queued_us, tokens, tenants, deadlines_us)


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

"""The loads that simulations are compared on, drawn for a server's own capacity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgumentError
from bench.kit.overload import LENGTHS, WIDE, OverloadHome
from loadtest.schedule import Row, Schedule
from workload.arrivals import GammaArrivals, PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.traces import Trace, read_trace

POISSON, GAMMA, TRACE = "poisson", "gamma cv 4", "trace"
_CV = 4.0


@dataclass(frozen=True)
class Capability:
    """What servers answer when they are kept full, all together.

    Attributes:
        batch_ms: What a full batch of one then takes; of stages, how long after one the next one ends.
        slowness: The same over what its cost model says.
    """

    rows_per_s: float
    batch_ms: float
    slowness: float


@dataclass(frozen=True)
class Loads:
    """Draws loads; the same seed, the same load.

    Attributes:
        home: Who is asked, and the texts.
        capability: What loads and deadlines are relative to.
        deadlines_in_batches: Deadlines are uniform between these.
        duration_s: Of each load.
        trace: Whose arrivals and tenants are replayed, in pieces of the right number of requests.
    """

    home: OverloadHome
    capability: Capability
    deadlines_in_batches: tuple[float, float]
    duration_s: float
    trace: Trace | None = None

    def schedule(self, process: str, load: float, seed: int) -> Schedule:
        rng = np.random.default_rng(seed)
        at_s, tenants = self._arrivals(process, load * self.capability.rows_per_s, rng)
        tokens = LENGTHS[WIDE].draw(len(at_s), rng).tolist()
        shortest, longest = (max(1, round(times * self.capability.batch_ms)) for times in self.deadlines_in_batches)
        deadlines_ms = UniformDeadlines(shortest, longest).draw_ms(len(at_s), rng).tolist()
        columns = zip(at_s.tolist(), tenants.tolist(), tokens, deadlines_ms, strict=True)
        hplms, texts = self.home.hplms, self.home.texts
        return Schedule.of(Row(at, hplms[tenant], texts[count], due_ms) for at, tenant, count, due_ms in columns)

    def _arrivals(
        self, process: str, rate_per_s: float, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return when requests come, and whose they are."""
        num_tenants = len(self.home.hplms)
        if process == TRACE:
            return self._piece(max(2, round(rate_per_s * self.duration_s)), rng)
        arrivals = PoissonArrivals(rate_per_s) if process == POISSON else GammaArrivals(rate_per_s, _CV)
        at_s = arrivals.times_s(self.duration_s, rng)
        return at_s, rng.integers(num_tenants, size=len(at_s))

    def _piece(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        trace = self.trace
        if trace is None or trace.tenants is None or len(trace) < count:
            raise InvalidArgumentError(f"the trace has no tenants, or fewer than {count:,} requests")
        first = int(rng.integers(len(trace) - count + 1))
        at_s = trace.times_s[first : first + count] - trace.times_s[first]
        return at_s * (self.duration_s / max(float(at_s[-1]), 1e-9)), trace.tenants[first : first + count] % len(
            self.home.hplms
        )


def trace_of(path: Path | None) -> Trace | None:
    return None if path is None else read_trace(path)

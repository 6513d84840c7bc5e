"""Several times the load that a server can answer, for minutes, from a process of its own.

Nearly all requests have deadlines, as an overload without them would only fill a queue; those without one wait their
turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from bench.kit.saturation import draw, saturate
from loadtest.in_process import Played, play_async
from loadtest.outcome import Kind
from loadtest.schedule import Row, Schedule
from loadtest.sender import Target
from workload.arrivals import PoissonArrivals

_SLICE_S = 20.0
_TIMEOUT_S = 120.0
_IN_FLIGHT = 64
_TIMED_OUT = "TIMEOUT"
_EDGE_ROWS = 32


@dataclass(frozen=True)
class Overload:
    """Open-loop load of `times` the capacity, which is measured first; drawn in slices, so that it needs no room."""

    grpc_url: str
    hplms: Sequence[str]
    texts: Sequence[str]
    duration_s: float
    times: float
    capacity_rows: int
    deadlines_ms: tuple[int, int]
    patient_share: float
    seed: int


@dataclass(frozen=True)
class Flooded:
    """What came of it; `lag_p99_ms` is by how much the callers themselves were late at worst."""

    capacity_per_s: float
    offered_per_s: float
    kinds: Counter[str]
    reasons: Counter[str]
    lag_p99_ms: float

    @property
    def lost(self) -> int:
        """Requests that nobody has answered or rejected."""
        return sum(count for reason, count in self.reasons.items() if reason.startswith(_TIMED_OUT))

    def figures(self) -> dict[str, float]:
        return {
            "overload_requests": float(self.kinds.total()),
            "overload_answered": float(self.kinds[Kind.ANSWERED]),
            "overload_rejected": float(self.kinds[Kind.REJECTED]),
            "overload_failed": float(self.kinds[Kind.FAILED]),
            "overload_over_capacity": self.offered_per_s / self.capacity_per_s,
            "capacity_per_s": self.capacity_per_s,
            "overload_lag_p99_ms": self.lag_p99_ms,
        }


def flood(overload: Overload) -> Flooded:
    """Play it, and return once each request has its outcome."""
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        return executor.submit(_flood, overload).result()


def _flood(overload: Overload) -> Flooded:
    rng = np.random.default_rng((overload.seed, 3))
    rows = draw(overload.hplms, overload.texts, overload.capacity_rows, rng)
    capacity = saturate(overload.grpc_url, rows, _IN_FLIGHT).rows_per_s(_EDGE_ROWS)
    played = asyncio.run(_play(overload, capacity * overload.times, rng))
    kinds, reasons = Counter[str](), Counter[str]()
    for part in played:
        kinds.update(str(kind) for kind in part.requests.kinds.tolist())
        reasons.update(part.reasons)
    lag_ms = max(part.lag_p99_ms for part in played)
    return Flooded(capacity, kinds.total() / overload.duration_s, kinds, reasons, lag_ms)


async def _play(overload: Overload, rate_per_s: float, rng: np.random.Generator) -> list[Played]:
    """Slices begin one after the other, whether the one before has all of its outcomes or not."""
    began_s = time.monotonic()
    target = Target(f"grpc://{overload.grpc_url}", timeout_s=_TIMEOUT_S)
    playing: list[asyncio.Task[Played]] = []
    async with asyncio.TaskGroup() as group:
        for at_s in np.arange(0.0, overload.duration_s, _SLICE_S).tolist():
            rows = _rows(overload, rate_per_s, min(_SLICE_S, overload.duration_s - at_s), rng)
            await asyncio.sleep(began_s + at_s - time.monotonic())
            playing.append(group.create_task(play_async(target, Schedule.of(rows))))
    return [task.result() for task in playing]


def _rows(overload: Overload, rate_per_s: float, duration_s: float, rng: np.random.Generator) -> list[Row]:
    times_s = PoissonArrivals(rate_per_s).times_s(duration_s, rng).tolist()
    asked = draw(overload.hplms, overload.texts, len(times_s), rng)
    deadlines_ms = rng.integers(*overload.deadlines_ms, size=len(times_s)).tolist()
    is_patient = (rng.random(len(times_s)) < overload.patient_share).tolist()
    columns = zip(times_s, asked, deadlines_ms, is_patient, strict=True)
    return [Row(at_s, hplm, text, None if patient else ms) for at_s, (hplm, text), ms, patient in columns]

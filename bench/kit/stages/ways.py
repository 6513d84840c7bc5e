"""Ways to serve two roots on two cores, and what becomes of the same requests in each."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import mean

import numpy as np

from backends.server_folder import FOLDER_VARIABLE
from bench.kit.stages.chained import Link
from bench.kit.stages.engine_process import Asking, EngineProcess, EngineShape, Numbers, Seconds
from bench.kit.stages.loads import Load

SIMPLE, STAGES, PROCESSES, POOL, REPLICAS = "simple", "stages", "stage processes", "pool", "replicas"
_AHEAD_S = 0.2
"""From when requests are dealt out to the first one."""

Deal = Callable[[Load, float], Numbers]
"""(requests, time of a row in seconds) → the engine of each."""


@dataclass(frozen=True)
class Way:
    """Engines, and which of them each request goes to.

    Attributes:
        cores: Of each engine.
        stages: Of each engine; where `is_chain`, of all of them together.
        is_chain: Whether each engine is a stage, and hands its rows to the next one.
    """

    name: str
    cores: tuple[tuple[int, ...], ...]
    deal: Deal
    stages: int = 1
    is_chain: bool = False


@dataclass(frozen=True)
class RowTimes:
    """What rows take in an engine of a way: alone, and where it never runs dry."""

    alone_s: float
    busy_s: float

    def times(self, factor: float) -> RowTimes:
        """Return the same on a machine that is this much slower."""
        return RowTimes(factor * self.alone_s, factor * self.busy_s)


def ways(first_core: int, second_core: int) -> dict[str, Way]:
    """Return each root alone on a core, both cut in stages (threads, processes), both pooled, and both copied."""
    one, other, both = (first_core,), (second_core,), (first_core, second_core)
    found = (
        Way(SIMPLE, (one, other), lambda load, _: load.roots),
        Way(STAGES, (both,), _to_the_first, stages=2),
        Way(PROCESSES, (both, both), _to_the_first, stages=2, is_chain=True),
        Way(POOL, (both,), _to_the_first),
        Way(REPLICAS, (one, other), to_the_first_free),
    )
    return {way.name: way for way in found}


class RunningWay:
    """The engines of a way."""

    def __init__(self, way: Way, engines: Sequence[EngineProcess], max_rows: int) -> None:
        self._way = way
        self._engines = engines
        self._max_rows = max_rows

    def row_s(self, rows: int) -> float:
        """Return what a row takes that is alone in its engine, while each engine computes one: the mean of all."""
        return mean([timed.result() for timed in [engine.alone_s(rows) for engine in self._engines]])

    def row_times(self, rows: int) -> RowTimes:
        """Measure rows in the first engine; the other one is like it."""
        engine = self._engines[0]
        return RowTimes(
            engine.alone_s(rows).result(), engine.busy_s(rows * min(16, self._max_rows), 4 * self._max_rows)
        )

    def latencies_s(self, load: Load, row_s: float) -> Seconds:
        engine_of, starts_at = self._way.deal(load, row_s), time.monotonic() + _AHEAD_S
        shares = [engine_of == number for number in range(len(self._engines))]
        futures = [
            engine.play(load.times_s[share], load.roots[share], starts_at)
            for engine, share in zip(self._engines, shares, strict=True)
        ]
        took_s = np.zeros(len(load.times_s))
        for share, future in zip(shares, futures, strict=True):
            took_s[share] = future.result()
        return took_s


@contextmanager
def running(way: Way, asking: Asking, max_rows: int) -> Iterator[RunningWay]:
    """Run the engines of a way until the block ends."""
    with ExitStack() as ending:
        ending.enter_context(_own_folder())
        link = ending.enter_context(closing(Link.new())) if way.is_chain else None
        ends: Sequence[Connection | None] = link or [None] * len(way.cores)
        engines: list[EngineProcess] = []
        for number in reversed(range(len(way.cores))):  # to warm up the first stage takes the second one
            shape = EngineShape(way.cores[number], way.stages, max_rows, number if way.is_chain else None)
            engines.insert(0, EngineProcess(shape, asking, end := ends[number]))
            ending.callback(engines[0].close)
            if end is not None:
                end.close()  # its process has it; while this one had it, too, that process's end could not be noticed
                engines[0].wait_until_warm()
        for engine in engines:
            engine.wait_until_warm()
        yield RunningWay(way, engines, max_rows)


@contextmanager
def _own_folder() -> Iterator[None]:
    """Give engines a signal folder of their own, and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        before = os.environ.get(FOLDER_VARIABLE)
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]
            if before is not None:
                os.environ[FOLDER_VARIABLE] = before


def to_the_first_free(load: Load, row_s: float) -> Numbers:
    """Deal to the core that is free first, if each row takes as long as a row alone."""
    free_s = np.zeros(2)
    dealt = np.zeros(len(load.times_s), np.int64)
    for number, time_s in enumerate(load.times_s.tolist()):
        dealt[number] = core = int(free_s.argmin())
        free_s[core] = max(free_s[core], time_s) + row_s
    return dealt


def _to_the_first(load: Load, _: float) -> Numbers:
    return np.zeros(len(load.times_s), np.int64)


def winner(mean_s: Mapping[str, float]) -> str:
    return min(mean_s, key=mean_s.__getitem__)

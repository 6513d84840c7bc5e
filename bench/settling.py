"""What does it save under overload that rows settle for an early answer before any is rejected?

The workloads of `bench.deadlines`: lengths around 20 tokens, Poisson arrivals at multiples of the capacity, deadlines
in 5 to 20 times what a full batch takes. One real server; every hPLM has an early head after two of six layers. The
same requests are sent twice, in turns: for the level `full`, which never settles, and without a level. Weights are
random and no row is sure enough to leave by itself, so all that is gained is gained by settling. What the early
answers are worth is another question (`bench.calibration`).

An answer that was settled for is doubtful, and so counted by the server. `late_unrejected` counts every answer that
came after its deadline, whether the SDK let it pass or not. Every other value is the median over the runs.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from backends.engine.precision import fast_float_dtype
from backends.root.geometry import RootGeometry
from backends.wire import AUTO
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.fates import Fate, Fates
from bench.kit.idle import wait_until_idle
from bench.kit.overload import WIDE, Engine, OverloadHome, overload_home
from bench.kit.progress import one_by_one
from bench.kit.random_root import random_ladder
from bench.kit.served import Serving, served
from bench.kit.server_metrics import figure_of
from bench.kit.synthetic_home import BERT_BASE, MIDDLE
from builder.serving import TritonServer
from builder.settings.hplm import LORA_EVERYWHERE
from hplm_client import Answer, AsyncHplmClient, Request
from loadtest.in_process import play
from loadtest.schedule import Schedule
from loadtest.sender import Ask, Target

_FULL = "full"
_LEVELS = (_FULL, AUTO)
_SURE = 1.0
"""No softmax of random weights is that."""
_SETTLED = 'hplm_answers_total{answer_level="early",reason="deadline"'


@dataclass(frozen=True)
class Settings:
    geometry: str
    runs: int
    duration_batches: int
    profiled_batches: int
    engine: Engine = field(default_factory=lambda: Engine(dtype=fast_float_dtype(torch.device("cpu"))))
    loads: tuple[float, ...] = (0.8, 1.2, 2.0, 3.0)
    after: int = 2
    tenants: int = 32
    capacity_batches: int = 16


FULL = Settings("BERT-base, 6 of 12 x 768 above PLOT", runs=3, duration_batches=16, profiled_batches=100)
QUICK = Settings(
    "middle, 6 of 12 x 512 above PLOT",
    runs=1,
    duration_batches=12,
    profiled_batches=40,
    engine=Engine(32, 1024, fast_float_dtype(torch.device("cpu"))),
    loads=(0.8, 2.0),
)


@dataclass(frozen=True, eq=False)
class Run:
    """One load at one level."""

    duration_s: float
    fates: Fates
    settled: int

    @property
    def goodput_per_s(self) -> float:
        return self.fates.count(Fate.ON_TIME) / self.duration_s

    def row(self) -> dict[str, float]:
        requests = len(self.fates.each)
        return {
            "requests": requests,
            "on time": self.fates.count(Fate.ON_TIME) / requests,
            "goodput": self.goodput_per_s,
            "settled": self.settled / max(1, self.fates.count(Fate.ON_TIME)),
            "admitted": self.fates.admitted / requests,
            "admitted on time": self.fates.admitted_on_time,
            **{str(fate): self.fates.count(fate) for fate in Fate if fate != Fate.ON_TIME},
            "p50 ms": self.fates.played.latency_ms(50),
            "p99 ms": self.fates.played.latency_ms(99),
        }


Runs = Mapping[tuple[float, str], Sequence[Run]]


@asynccontextmanager
async def _open(target: Target, level: str) -> AsyncIterator[Ask]:
    async with AsyncHplmClient(target.url, target.protocol, retries=0) as client:

        async def ask(request: Request) -> Answer:
            return await client.infer(request.hplm, request.text, deadline_ms=request.deadline_ms, level=level)

        yield ask


def _play(server: TritonServer, schedule: Schedule, level: str, duration_s: float) -> Run:
    before = figure_of(server, _SETTLED)
    fates = Fates(play(Target(server.grpc_url), schedule, open_ask=partial(_open, level=level)))
    wait_until_idle(server)
    return Run(duration_s, fates, round(figure_of(server, _SETTLED) - before))


def _measure(home: OverloadHome, server: TritonServer, settings: Settings, seed: int) -> tuple[float, Runs]:
    rng = np.random.default_rng(seed)
    home.warm(server, rng)
    capacities: list[float] = []
    found: dict[tuple[float, str], list[Run]] = {}
    for run in range(settings.runs):
        capacities.append(home.capacity_per_s(server, WIDE, settings.capacity_batches, rng))
        duration_s = settings.duration_batches * settings.engine.batch / capacities[-1]
        for turn, load in enumerate(one_by_one(settings.loads, "settling", f"run {run + 1}")):
            rows = home.plan(WIDE, load * capacities[-1], capacities[-1], duration_s, rng)
            for level in _LEVELS if (run + turn) % 2 else _LEVELS[::-1]:
                played = _play(server, Schedule.of(rows), level, duration_s)
                found.setdefault((load, level), []).append(played)
    return median(capacities), found


def figures_of(capacity: float, found: Runs) -> dict[str, float]:
    def goodput(load: float, level: str) -> float:
        return median(run.goodput_per_s for run in found[load, level])

    ladders = [run for (_, level), runs in found.items() if level == AUTO for run in runs]
    ratios = {f"goodput_{load:g}x_over_full": goodput(load, AUTO) / goodput(load, _FULL) for load, _ in found}
    return {
        **{name.replace(".", "_"): ratio for name, ratio in ratios.items()},
        "settled_2x": median(run.row()["settled"] for run in found[2.0, AUTO]),
        "late_unrejected": sum(run.fates.count(Fate.LATE, Fate.OVERTAKEN) for run in ladders),
        "admitted_on_time_2x": median(run.fates.admitted_on_time for run in found[2.0, AUTO]),
        "capacity_rows_per_s": capacity,
    }


def _table(found: Runs) -> list[dict[str, Any]]:
    rows = {key: [run.row() for run in runs] for key, runs in sorted(found.items())}
    return [
        {"load": load, "level": level, **{column: median(row[column] for row in of_cell) for column in of_cell[0]}}
        for (load, level), of_cell in rows.items()
    ]


def _measured(settings: Settings, geometry: RootGeometry, seed: int) -> tuple[float, Runs]:
    ladder = random_ladder(geometry, settings.after, _SURE, torch.Generator().manual_seed(seed))
    made = overload_home(
        geometry, settings.engine, settings.tenants, settings.profiled_batches, seed, LORA_EVERYWHERE, ladder
    )
    with made as home, served(home.home, Serving(upper=settings.engine.parameters)) as server:
        return _measure(home, server, settings, seed)


@bench(
    "settling",
    quick_s=QUICK_LOADS_S,
    bars={
        "goodput_2x_over_full": at_least(1.3),
        "late_unrejected": at_most(0),
        "admitted_on_time_2x": at_least(0.99),
    },
)
def settling(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    capacity, found = _measured(settings, MIDDLE if options.quick else BERT_BASE, options.seed)
    return Result(asdict(settings), figures_of(capacity, found), _table(found))


if __name__ == "__main__":
    settling.main()

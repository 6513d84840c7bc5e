"""Who forms the better batches: the engine, Triton alone, or Triton with the deadline batcher?

Three servers on one home, asked by turns: open-loop Poisson arrivals with deadlines at shares of the capacity, which is
what the engine answers when it is kept full. Lengths, tenants and deadlines are drawn anew for each load and repeat,
and the same for all three. The plugin's cost model is measured as `hplm profile` does it, just before.
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from backends.root.geometry import RootGeometry
from bench.kit.entry import QUICK_LOADS_S, Result, bench
from bench.kit.fates import Fate, Fates
from bench.kit.idle import wait_until_idle
from bench.kit.overload import WIDE, Engine, OverloadHome, overload_home
from bench.kit.progress import one_by_one
from bench.kit.served import Serving, all_served
from bench.kit.synthetic_home import BERT_BASE, MIDDLE
from builder.serving import TritonServer
from loadtest.in_process import play
from loadtest.schedule import Schedule
from loadtest.sender import Target

ENGINE, TRITON, PLUGIN = "engine", "triton", "plugin"
Cell = tuple[float, str]
"""A load and a mode."""


@dataclass(frozen=True)
class Settings:
    geometry: str
    duration_batches: int
    repeats: int
    profiled_batches: int
    engine: Engine = field(default_factory=Engine)
    longest_s: float = 60.0
    capacity_batches: int = 24
    loads: tuple[float, ...] = (0.7, 1.0, 1.5)
    tenants: int = 32


FULL = Settings("BERT-base, 6 of 12 x 768 above PLOT", duration_batches=100, repeats=3, profiled_batches=80)
QUICK = Settings(
    "middle, 6 of 12 x 512 above PLOT",
    duration_batches=30,
    repeats=1,
    profiled_batches=40,
    engine=Engine(batch=32, max_tokens=1024),
)


def servings(home: OverloadHome) -> dict[str, Serving]:
    upper = home.engine.parameters
    return {
        ENGINE: Serving(ENGINE, upper=upper),
        TRITON: Serving(TRITON, upper=upper, mode="triton", takes_plugin=False),
        PLUGIN: Serving(PLUGIN, upper=upper, mode="triton", cost_model=home.cost_model),
    }


def measure(
    home: OverloadHome, servers: Mapping[str, TritonServer], settings: Settings, seed: int
) -> tuple[float, dict[Cell, list[Fates]]]:
    """The capacity in rows per second, and what became of each load in each mode."""
    rng, modes = np.random.default_rng(seed), list(servers)
    for server in servers.values():
        home.warm(server, rng)
    capacity = home.capacity_per_s(servers[ENGINE], WIDE, settings.capacity_batches, rng)
    duration_s = min(settings.duration_batches * settings.engine.batch / capacity, settings.longest_s)
    results: dict[Cell, list[Fates]] = defaultdict(list)
    loads = [(repeat + turn, load) for repeat in range(settings.repeats) for turn, load in enumerate(settings.loads)]
    for turn, load in one_by_one(loads, "modes", "loads"):
        schedule = Schedule.of(home.plan(WIDE, load * capacity, capacity, duration_s, rng))
        turn %= len(modes)
        for mode in (*modes[turn:], *modes[:turn]):
            results[load, mode].append(Fates(play(Target(servers[mode].grpc_url), schedule)))
            wait_until_idle(servers[mode])
    return capacity, results


def table(results: Mapping[Cell, Sequence[Fates]]) -> list[dict[str, Any]]:
    return [
        {
            "load": load,
            "mode": mode,
            "requests": sum(len(one.each) for one in runs),
            "on time": median(one.played.attainment for one in runs),
            "rejected": median(one.share(Fate.REJECTED, Fate.EXPIRED) for one in runs),
            "answered late": median(one.share(Fate.LATE, Fate.OVERTAKEN) for one in runs),
            "not sent": median(one.share(Fate.UNSENT) for one in runs),
            "p50 ms": median(one.played.latency_ms(50) for one in runs),
            "p99 ms": median(one.played.latency_ms(99) for one in runs),
            "client cores": median(one.played.client_cores for one in runs),
            "sent late p99 ms": max(one.played.lag_p99_ms for one in runs),
        }
        for (load, mode), runs in sorted(results.items())
    ]


def figures(capacity_per_s: float, results: Mapping[Cell, Sequence[Fates]]) -> dict[str, float]:
    """Ratios are of the same requests, repeat by repeat."""
    values: dict[str, float] = {"capacity_rows_per_s": capacity_per_s}
    for load, mode in sorted(results):
        suffix = f"{mode}_{load:g}x".replace(".", "_")
        runs, pairs = results[load, mode], list(zip(results[load, mode], results[load, ENGINE], strict=True))
        values[f"attainment_{suffix}"] = median(one.played.attainment for one in runs)
        values[f"p99_ms_{suffix}"] = median(one.played.latency_ms(99) for one in runs)
        if mode != ENGINE:
            attainments = (_ratio(one.played.attainment, engine.played.attainment) for one, engine in pairs)
            latencies = (_ratio(one.played.latency_ms(99), engine.played.latency_ms(99)) for one, engine in pairs)
            values[f"attainment_over_engine_{suffix}"] = median(attainments)
            values[f"p99_over_engine_{suffix}"] = median(latencies)
    return values


def _ratio(one: float, other: float) -> float:
    """Divide; by nearly nothing where the other has come to nothing."""
    return one / max(other, 1e-3)


@bench("modes", quick_s=QUICK_LOADS_S)
def modes(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    geometry: RootGeometry = MIDDLE if options.quick else BERT_BASE
    profiled_batches = settings.profiled_batches
    with (
        overload_home(geometry, settings.engine, settings.tenants, profiled_batches, options.seed) as home,
        all_served(home.home, servings(home)) as servers,
    ):
        capacity_per_s, results = measure(home, servers, settings, options.seed)
    described = asdict(settings) | home.cost_model.to_json()
    return Result(described, figures(capacity_per_s, results), table(results))


if __name__ == "__main__":
    modes.main()

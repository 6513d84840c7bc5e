"""Does the simulator come out as the real server does, and how long does an hour take it?

The hour is one of 1,000 requests a second, on machines that could answer twice as many, just as many, and half as many.
The server is asked at several loads, open-loop, with deadlines; the simulator meets the very same requests. It stands
for the server as far as its cost model does, and that is what batches took in the same run. Beside it what came of one
that was measured on the same server just before: "foretold".
"""

from __future__ import annotations

import gc
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from backends.scheduling.cost_model import CostModel
from backends.scheduling.settings import Capacity
from bench.kit.entry import QUICK_LOADS_S, Result, at_most, bench
from bench.kit.synthetic_home import BERT_BASE, SMALL
from bench.kit.twin import Calibration, Comparison, TwinSettings, compare
from builder.placement import ConstantDelay, Simulator, Workload
from builder.placement.described_workload import Machine
from builder.placement.policies import POLICY_NAMES, policy_named
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import NormalLengths
from workload.tenants import ZipfTenants

RATE_PER_S = 1_000.0
LENGTHS = NormalLengths(standard_deviation=20)
TENANTS = ZipfTenants(1_000)
SHAPE_OF_COSTS = CostModel(2_000.0, 100.0, 30.0, 0.01, 50.0)


@dataclass(frozen=True)
class Settings:
    simulated_s: float
    twin: TwinSettings
    loads: tuple[float, ...] = (0.5, 1.0, 2.0)


FULL = Settings(
    simulated_s=3_600.0,
    twin=TwinSettings(BERT_BASE, (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0), 150.0, 64, 1_920, 80, (5.0, 20.0)),
)
QUICK = Settings(simulated_s=20.0, twin=TwinSettings(SMALL, (0.5, 1.2, 2.0), 15.0, 64, 512, 40, (5.0, 20.0)))


def hour_rows(settings: Settings, policies: Sequence[str], seed: int) -> list[dict[str, Any]]:
    # A quick run is so short that one collection of all that was imported would be most of an hour.
    gc.collect()
    gc.freeze()
    return [_hour(settings, policy, load, seed) for policy in policies for load in settings.loads]


def _hour(settings: Settings, policy: str, load: float, seed: int) -> dict[str, Any]:
    """The machine is as fast as makes the rate this much of its capacity; drawing the load counts."""
    own_rate_per_s = Machine(SHAPE_OF_COSTS, Capacity()).rate_per_s(LENGTHS, TENANTS)
    model = SHAPE_OF_COSTS.scaled(load * own_rate_per_s / RATE_PER_S)
    batch_ms = 64_000.0 / RATE_PER_S * load
    deadlines = UniformDeadlines(round(5 * batch_ms), round(20 * batch_ms))
    workload = Workload(PoissonArrivals(RATE_PER_S), LENGTHS, TENANTS, deadlines, ConstantDelay(2_000))
    start_s = time.perf_counter()
    simulation = Simulator(policy_named(policy, model), model).run(workload.draw(settings.simulated_s, seed))
    taken_s = time.perf_counter() - start_s
    return {
        "policy": policy,
        "load": load,
        "attainment": simulation.attainment,
        "rows per batch": float(simulation.batches.rows.mean()),
        "simulated hour s": 3_600 * taken_s / settings.simulated_s,
        "us per request": 1e6 * taken_s / len(simulation.load),
    }


def twin_rows(policy: str, comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "policy": policy,
            "load": one.load,
            "requests": len(one.played.requests),
            "attainment": one.attainment,
            "seen by clients": one.played.attainment,
            "simulated": one.simulated.attainment,
            "points apart": one.error_points,
            "foretold": one.foretold.attainment,
            "points from foretold": one.foretold_error_points,
            "batches slower by": one.slowdown,
            "p50 ms": one.played.latency_ms(50),
            "simulated p50 ms": one.simulated.figures().get("p50_ms"),
            "client cores": one.played.client_cores,
            "sent late p99 ms": one.played.lag_p99_ms,
            "first error": next(iter(one.played.reasons), None),
        }
        for one in comparisons
    ]


def figures(hours: Sequence[dict[str, Any]], calibration: Calibration, twin: Sequence[Comparison]) -> dict[str, float]:
    errors = [one.error_points for one in twin]
    foretold_errors = [one.foretold_error_points for one in twin]
    slowest: dict[str, float] = {}
    for row in hours:
        name = f"simulated_hour_s_{row['policy'].replace('-', '_')}"
        slowest[name] = max(slowest.get(name, 0.0), row["simulated hour s"])
    return {
        "simulated_hour_s": max(slowest.values()),
        **slowest,
        "simulator_error_points": max(errors),
        "simulator_error_points_mean": mean(errors),
        "foretold_error_points": max(foretold_errors),
        "foretold_error_points_mean": mean(foretold_errors),
        "server_rows_per_s": calibration.rate_per_s,
        "server_full_batch_ms": calibration.full_batch_us / 1e3,
    }


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--policy", default="fcfs", choices=POLICY_NAMES, help="what the server runs by")


@bench(
    "simulator",
    quick_s=QUICK_LOADS_S,
    bars={"simulated_hour_s": at_most(30), "simulator_error_points": at_most(2)},
    add_options=add_options,
)
def simulator(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    hours = hour_rows(settings, POLICY_NAMES, options.seed)
    calibration, comparisons = compare(settings.twin, options.policy, options.seed)
    rows = [*hours, *twin_rows(options.policy, comparisons)]
    return Result(asdict(settings), figures(hours, calibration, comparisons), rows)


if __name__ == "__main__":
    simulator.main()

"""Does the simulator come out as the real servers do, and how long does an hour take it?

The hour is one of 1,000 requests a second, on machines that could answer twice as many, just as many, and half as many;
then the same on four servers behind a gateway. The real servers are asked open-loop, with deadlines, in several ways to
run them. What serving takes there is measured in a calibration, by other loads than those that are predicted, and
frozen in a file. The simulator gets nothing of a run but the moments at which its requests left.

Seven ways take half an hour each. Each is kept in a file of `--trials`, and the same command goes on with those that
are not there, as long as it runs on the same machine.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from backends.errors import HplmError, InvalidArgumentError
from bench.kit.entry import QUICK_LOADS_S, Result, at_most, bench
from bench.kit.report import machine
from bench.kit.synthetic_home import BERT_BASE, SMALL
from bench.kit.trials import Trials
from bench.kit.twins.frozen import Frozen, FrozenSettings, Predicted, predict
from bench.kit.twins.loads import GAMMA, POISSON, TRACE, trace_of
from bench.kit.twins.simulated_hours import hour_figures, hour_rows
from bench.kit.twins.variants import VARIANTS, Variant
from builder.placement.policies import POLICY_NAMES
from hplm_client import ClientError
from loadtest.errors import RunError

Rows = Sequence[Mapping[str, Any]]
_EDITION = 2
"""Version of the kept ways. Raise it when the simulator or the measurement changes: they hold what is predicted."""


@dataclass(frozen=True)
class Settings:
    simulated_s: float
    frozen: FrozenSettings
    variants: tuple[str, ...]
    hour_loads: tuple[float, ...] = (0.5, 1.0, 2.0)


FULL = Settings(
    3_600.0,
    FrozenSettings(
        BERT_BASE,
        calibration_loads=(0.5, 1.2, 2.5),
        loads=(0.8, 1.0, 1.5, 2.0, 3.0),
        processes=(POISSON, GAMMA),
        repeats=3,
        duration_s=20.0,
        least_batches=80,
        max_rows=64,
        profiled_batches=80,
        capacity_batches=30,
        paced_rows_per_s=240.0,
    ),
    tuple(VARIANTS),
)
QUICK = Settings(
    60.0,
    FrozenSettings(
        SMALL,
        calibration_loads=(0.5, 1.2, 2.5),
        loads=(0.8, 2.0),
        processes=(POISSON,),
        repeats=2,
        duration_s=5.0,
        least_batches=40,
        max_rows=64,
        profiled_batches=40,
        capacity_batches=8,
        paced_rows_per_s=240.0,
    ),
    ("shared", "paced_1"),
)


def predicted(
    names: Iterable[str], trials: Trials, compare: Callable[[Variant], Frozen]
) -> tuple[dict[str, Rows], dict[str, str]]:
    """Compare one variant after the other, unless that is kept; one that fails costs the others nothing.

    Returns the rows of those that did not fail, and the others' errors, by their names.
    """
    found: dict[str, Rows] = {}
    failed: dict[str, str] = {}
    for name in names:
        if (kept := _kept(name, trials)) is not None:
            found[name] = kept
            continue
        try:
            found[name] = variant_rows(compare(VARIANTS[name]))
        except (HplmError, RunError, ClientError, psutil.Error, OSError) as error:
            failed[name] = str(error)
            _say(f"variant {name} failed: {error}")
            continue
        try:
            trials.keep(name, found[name])
        except (HplmError, OSError) as error:
            _say(f"variant {name} is not kept: {error}")
    return found, failed


def _kept(name: str, trials: Trials) -> Rows | None:
    try:
        return trials.find(name)
    except (HplmError, OSError) as error:
        _say(f"variant {name} is measured again: {error}")
        return None


def _say(line: str) -> None:
    print(f"bench.simulator: {line}", file=sys.stderr, flush=True)


def variant_rows(frozen: Frozen) -> list[dict[str, Any]]:
    """Return the row of the calibration, and one of each load that was predicted."""
    calibrated = {
        "what": frozen.variant.name,
        "arrivals": "calibration",
        "rows a second": frozen.capability.rows_per_s,
        **asdict(frozen.costs.cores),
    }
    return [calibrated, *(_row(frozen, one) for one in frozen.predicted)]


def _row(frozen: Frozen, one: Predicted) -> dict[str, Any]:
    runs = [run.played for run in one.runs]
    return {
        "what": frozen.variant.name,
        "arrivals": one.process,
        "load": one.load,
        "requests": len(runs[0].requests),
        "attainment": one.real,
        "predicted": mean(one.simulated),
        "points": one.points,
        "runs apart by": one.repeat_points,
        "without serving": mean(one.plain),
        "points without": one.plain_points,
        "p50 ms": mean(run.latency_ms(50) for run in runs),
        "client cores": mean(run.client_cores for run in runs),
        "sent late p99 ms": max(run.lag_p99_ms for run in runs),
        "servers left out": sum(run.num_left_out for run in one.runs),
    }


def variant_figures(name: str, rows: Rows) -> dict[str, float]:
    """Return a variant's figures by its name."""
    calibrated, *loads = rows
    points = [row["points"] for row in loads]
    values = {
        "frozen_error_points": mean(map(abs, points)),
        "worst_error_points": max(map(abs, points)),
        "bias_points": mean(points),
        "real_repeat_points": mean(row["runs apart by"] for row in loads),
        "plain_error_points": mean(abs(row["points without"]) for row in loads),
        "rows_per_s": calibrated["rows a second"],
    }
    return {f"{figure}_{name}": value for figure, value in values.items()}


def frozen_figures(variants: Mapping[str, Rows]) -> dict[str, float]:
    """Return the largest of the variants, and each of them by name; of biases the one that is furthest from 0."""
    named: dict[str, float] = {}
    for name, rows in variants.items():
        named |= variant_figures(name, rows)

    def of_all(figure: str) -> list[float]:
        return [named[f"{figure}_{name}"] for name in variants]

    beyond = (
        worst - repeat for worst, repeat in zip(of_all("worst_error_points"), of_all("real_repeat_points"), strict=True)
    )
    return {
        "frozen_error_points": max(of_all("frozen_error_points")),
        "worst_error_points": max(of_all("worst_error_points")),
        "worst_beyond_repeat_points": max(beyond),
        "bias_points": max(map(abs, of_all("bias_points"))),
        "real_repeat_points": max(of_all("real_repeat_points")),
        "plain_error_points": max(of_all("plain_error_points")),
        **named,
    }


def _checksum(path: Path | None) -> str | None:
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--policy", default="fcfs", choices=POLICY_NAMES, help="what the servers run by")
    arguments.add_argument("--variants", nargs="*", choices=list(VARIANTS), help="ways to run servers; by default all")
    arguments.add_argument("--trace", type=Path, metavar="FILE", help="also replay pieces of a trace with tenants")
    arguments.add_argument("--costs", type=Path, metavar="FOLDER", help="keep the frozen costs there")
    arguments.add_argument("--trials", type=Path, metavar="FOLDER", help="keep what was measured of each way there")


@bench(
    "simulator",
    quick_s=QUICK_LOADS_S,
    bars={
        "simulated_hour_s": at_most(30),
        "simulated_hour_s_fleet": at_most(90),
        "frozen_error_points": at_most(2),
        "worst_beyond_repeat_points": at_most(2),
        "bias_points": at_most(1),
        "variants_failed": at_most(0),
    },
    add_options=add_options,
)
def simulator(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    names = settings.variants if options.variants is None else options.variants
    if not names:
        raise InvalidArgumentError("--variants needs one name at least")
    trace = trace_of(options.trace)
    frozen_settings = settings.frozen
    if trace is not None:
        frozen_settings = replace(frozen_settings, processes=(*frozen_settings.processes, TRACE))
    described = {**asdict(settings), "frozen": asdict(frozen_settings), "policy": options.policy}
    depends_on = {**described, "seed": options.seed, "machine": machine(), "trace": _checksum(options.trace)}
    depends_on["edition"] = _EDITION
    trials = Trials(options.trials, depends_on)
    hours = hour_rows(settings.simulated_s, settings.hour_loads, POLICY_NAMES, options.seed)
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as scratch:
        folder = options.costs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        compare = partial(
            predict, settings=frozen_settings, policy=options.policy, folder=folder, trace=trace, seed=options.seed
        )
        variants, failed = predicted(names, trials, compare)
    if not variants:
        raise HplmError("; ".join(f"{name}: {error}" for name, error in failed.items()))
    rows = [*hours, *(row for of_variant in variants.values() for row in of_variant)]
    rows += [{"what": name, "error": error} for name, error in failed.items()]
    figures = {**hour_figures(hours), **frozen_figures(variants), "variants_failed": float(len(failed))}
    return Result(described, figures, rows)


if __name__ == "__main__":
    simulator.main()

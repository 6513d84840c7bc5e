"""What does placing anew gain where traffic drifts, once its moves have their costs?

Simulated: roots on devices that hold two of them, six windows, in four of which the roots' ranks are shuffled and one
is asked five times as much. The static placement stays that of the first window. A new one is made of the first tenth
of a window, and its steps take what `MoveCosts` says. `always` changes whatever is found, and is what hysteresis is
for. The free one is made for each window beforehand, and its moves take no time.

Paced: the same on the servers of `hplm fleet serve`, whose devices wait instead of computing: gateway, Triton, lower
half, queues, admission, recording of the traffic, planner and `hplm fleet apply` are real. A paced server rejects
requests for roots that it does not hold, as its device has room for two. Of one window, as a restart takes seconds here
too. The same requests are sent in turn to the three placements. The simulation predicts the shares on time, with what a
row and a restart took before. Lost requests got neither an answer nor a rejection by a server.
"""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any

from bench.kit.drifting.judgement import paced_figures
from bench.kit.drifting.runs import played_drift
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.placing.drift import DriftSettings, Way, drift_figures, drift_rows

PARTS = ("simulated", "paced")
_PACED = DriftSettings(
    num_roots=6, num_devices=4, drifts=(True,), window_s=180.0, observed=0.12, load=0.45, alone_us=50_000
)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    simulated: DriftSettings = field(default=DriftSettings())
    seeds: int = 5
    paced: DriftSettings = field(default=_PACED)


_QUICK = Settings(
    simulated=DriftSettings(num_roots=6, num_devices=5, window_s=300.0),
    seeds=1,
    paced=dataclasses.replace(_PACED, window_s=60.0),
)


@dataclass(frozen=True)
class Measured:
    """Figures and rows of one part."""

    figures: Mapping[str, float]
    rows: Sequence[Row]


def simulated(settings: Settings, seed: int) -> Measured:
    rows: list[Row] = []
    measured = []
    for number in range(settings.seeds):
        of_seed = drift_rows(settings.simulated, seed + number)
        rows += [{"part": "simulated", "seed": seed + number, **row} for row in of_seed]
        measured.append(drift_figures(of_seed))
    figures = {name: mean(each[name] for each in measured) for name in measured[0]}
    figures |= {
        "replaced_over_static_points": _points(figures, Way.REPLACED, Way.STATIC),
        "replaced_over_always_points": _points(figures, Way.REPLACED, Way.ALWAYS),
        "free_over_replaced_points": _points(figures, Way.FREE, Way.REPLACED),
    }
    return Measured(figures, rows)


def paced(settings: Settings, seed: int) -> Measured:
    played = played_drift(settings.paced, seed)
    known = dataclasses.replace(settings.paced, costs=played.costs, slowness=played.slowness)
    predicted = drift_rows(known, seed)
    rows: list[Row] = [run.row() for run in played.runs]
    rows += [{"part": "predicted", **row} for row in predicted]
    figures = paced_figures(played.runs, drift_figures(predicted))
    return Measured({**figures, "paced_slowness": played.slowness, "idle_restart_s": played.costs.reload_s}, rows)


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")


@bench(
    "replace",
    quick_s=QUICK_LOADS_S,
    bars={
        "replaced_over_static_points": at_least(0),
        "free_over_replaced_points": at_least(0),
        "paced_replaced_over_static_points": at_least(0),
        "paced_free_over_replaced_points": at_least(0),
        "paced_restarts": at_least(1),
        "lost_requests": at_most(0),
    },
    add_options=add_options,
)
def replace(options: Namespace) -> Result:
    settings = _QUICK if options.quick else Settings()
    parts = {"simulated": simulated, "paced": paced}
    measured = [parts[name](settings, options.seed) for name in PARTS if name in (options.only or PARTS)]
    figures = {name: value for each in measured for name, value in each.figures.items()}
    return Result(asdict(settings), figures, [row for each in measured for row in each.rows])


def _points(figures: Mapping[str, float], above: Way, below: Way) -> float:
    return 100 * (figures[f"attainment_{above}"] - figures[f"attainment_{below}"])


if __name__ == "__main__":
    replace.main()

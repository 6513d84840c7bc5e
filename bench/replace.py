"""What does placing anew gain where traffic drifts, once its moves have their costs?

Simulated: roots on devices that hold two of them, six windows, in four of which the roots' ranks are shuffled and one
is asked five times as much. The static placement stays that of the first window. A new one is made of the first tenth
of a window, and its steps take what `MoveCosts` says. `always` changes whatever is found, and is what hysteresis is
for. The free one is made for each window beforehand, and its moves take no time.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from statistics import mean

from bench.kit.entry import QUICK_LOADS_S, Result, at_least, bench
from bench.kit.placing.drift import DriftSettings, Way, drift_figures, drift_rows

_SEEDS, _QUICK_SEEDS = 5, 1
_QUICK = DriftSettings(num_roots=6, num_devices=5, window_s=300.0)


@bench(
    "replace",
    quick_s=QUICK_LOADS_S,
    bars={"replaced_over_static_points": at_least(0), "free_over_replaced_points": at_least(0)},
)
def replace(options: Namespace) -> Result:
    settings, seeds = (_QUICK, _QUICK_SEEDS) if options.quick else (DriftSettings(), _SEEDS)
    rows, found = [], []
    for number in range(seeds):
        of_seed = drift_rows(settings, options.seed + number)
        rows += [{"seed": options.seed + number, **row} for row in of_seed]
        found.append(drift_figures(of_seed))
    figures = {name: mean(each[name] for each in found) for name in found[0]}
    figures |= {
        "replaced_over_static_points": _points(figures, Way.REPLACED, Way.STATIC),
        "replaced_over_always_points": _points(figures, Way.REPLACED, Way.ALWAYS),
        "free_over_replaced_points": _points(figures, Way.FREE, Way.REPLACED),
    }
    return Result(asdict(settings), figures, rows)


def _points(figures: dict[str, float], above: Way, below: Way) -> float:
    return 100 * (figures[f"attainment_{above}"] - figures[f"attainment_{below}"])


if __name__ == "__main__":
    replace.main()

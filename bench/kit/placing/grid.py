"""How much rate, and how few devices, a plan takes for 99 % in time, beside replication: small devices, bursts.

Placements are made for one traffic and judged by another of the same kind. `held_out_loss_points` is what the second
loses where the first is served as well as is asked: there an operator would stop who knows the first only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean, mean
from typing import Any

from bench.kit.placing.loads import devices, even_model
from bench.kit.placing.loads_by_rate import LoadByRate
from builder.placement.planner.baselines import replicated, round_robin
from builder.placement.planner.group_simulator import GroupSimulator
from builder.placement.planner.problem import Problem
from builder.placement.planner.search import best_selection
from builder.placement.planner.selection import Selection

TARGET = 0.99
WAYS = ("plan", "replication", "round_robin")
_ALONE_US, _SIZE_BYTES = 24_000, 1_000_000_000
_ROOTS_PER_DEVICE = 1.5
_SLO_SCALE = 5
_LEAST_LOAD, _MOST_LOAD = 0.01, 1.2


@dataclass(frozen=True)
class GridSettings:
    """How finely loads are told apart, in halvings of their span, and how many devices are tried."""

    steps: int
    most_devices: int


def grid_rows(loads: Sequence[LoadByRate], settings: GridSettings) -> list[dict[str, Any]]:
    return [_Cell(load, settings).row() for load in loads]


def grid_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return geometric means, and the share of the cells in which replication reaches the target at no load.

    There it counts with the least load that is tried, so the ratio of rates is larger than the mean says.
    """
    return {
        "rate_over_replication_99": geometric_mean(
            [_ratio(row, "load_99_plan", "load_99_replication") for row in rows]
        ),
        "devices_saved_99": geometric_mean(_ratio(row, "devices_replication", "devices_plan") for row in rows),
        "replication_nowhere_share": mean(row["load_99_replication"] <= _LEAST_LOAD for row in rows),
        "held_out_loss_points": 100 * mean(max(0.0, row["training"] - row["held_out"]) for row in rows),
    }


def placed(way: str, problem: Problem) -> Selection:
    """Return the placement of one of the ways."""
    match way:
        case "plan":
            return best_selection(problem).selection
        case "replication":
            return replicated(problem)
        case _:
            return round_robin(problem)


def largest_where(holds: Callable[[float], bool], least: float, most: float, steps: int) -> float:
    """Return the largest number at which something holds that holds up to some number; the least if nowhere."""
    if holds(most):
        return most
    for _ in range(steps):
        middle = (least * most) ** 0.5
        least, most = (middle, most) if holds(middle) else (least, middle)
    return least


class _Cell:
    """One traffic, at any load and on any number of devices."""

    def __init__(self, load: LoadByRate, settings: GridSettings) -> None:
        self._load, self._settings = load, settings
        self._models = tuple(even_model(f"r{number}", _ALONE_US, _SIZE_BYTES) for number in range(load.num_roots))

    def row(self) -> dict[str, Any]:
        num_devices = self._load.num_roots
        steps = self._settings.steps
        loads = {
            way: largest_where(partial(self._reaches, way, num_devices), _LEAST_LOAD, _MOST_LOAD, steps)
            for way in ("plan", "replication")
        }
        seems_enough = largest_where(self._seems_to_reach, _LEAST_LOAD, _MOST_LOAD, steps)
        training, held_out = self._attained("plan", num_devices, seems_enough)
        needed = {f"devices_{way}": self._fewest_devices(way, loads["plan"]) for way in loads}
        return {
            **self._load.labels,
            **{f"load_99_{way}": load for way, load in loads.items()},
            **needed,
            **{way: self._attained(way, num_devices, loads["plan"])[1] for way in WAYS},
            "load_99_training": seems_enough,
            "training": training,
            "held_out": held_out,
        }

    def _reaches(self, way: str, num_devices: int, load: float) -> bool:
        return self._attained(way, num_devices, load)[1] >= TARGET

    def _seems_to_reach(self, load: float) -> bool:
        """Whether a plan reaches the target by the requests that it was made for."""
        return self._attained("plan", self._load.num_roots, load)[0] >= TARGET

    def _fewest_devices(self, way: str, load: float) -> int:
        """Return the fewest devices that reach the target at a rate; the most that are tried, if none do."""
        count, most = max(1, round(self._load.num_roots / _ROOTS_PER_DEVICE)), self._settings.most_devices
        while count < most and not self._reaches(way, count, load):
            count += max(1, count // 8)
        return min(count, most)

    def _attained(self, way: str, num_devices: int, load: float) -> tuple[float, float]:
        """Return what is in time of the requests that the placement was made for, and of others."""
        rate_per_s, patience_us = load * self._load.num_roots * 1e6 / _ALONE_US, _SLO_SCALE * _ALONE_US
        seen, unseen = (self._load.traffic(rate_per_s, patience_us, is_judge) for is_judge in (False, True))
        where = devices(num_devices, round(_ROOTS_PER_DEVICE * _SIZE_BYTES), num_devices)
        problem = Problem(self._models, where, seen)
        groups, times = placed(way, problem).groups, problem.forms.times
        training, held_out = (GroupSimulator(each, times).play(groups).attainment for each in (seen, unseen))
        return training, held_out


def _ratio(row: Mapping[str, Any], above: str, below: str) -> float:
    return float(row[above]) / max(0.01, float(row[below]))

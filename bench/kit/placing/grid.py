"""How much rate, and how few devices, a plan takes for 99 % in time, beside replication: small devices, bursts.

Placements are made for one traffic and judged by another of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean, mean
from typing import NamedTuple

from bench.kit.placing.loads import devices, even_model, gamma_traffic, shares
from builder.placement.planner.baselines import replicated, round_robin
from builder.placement.planner.group_simulator import GroupSimulator
from builder.placement.planner.problem import Problem
from builder.placement.planner.search import best_selection
from builder.placement.planner.selection import Selection
from builder.placement.planner.traffic import Traffic

TARGET = 0.99
WAYS = ("plan", "replication", "round_robin")
_ALONE_US, _SIZE_BYTES = 24_000, 1_000_000_000
_ROOTS_PER_DEVICE = 1.5
_SLO_SCALE = 5
_LEAST_LOAD, _MOST_LOAD = 0.01, 1.2
_HELD_OUT = 1_000_003
"""Added to a seed for the traffic that judges."""


class Case(NamedTuple):
    """One cell of the grid: so many roots, with shares by rank to the power of the exponent, and gaps of a CV."""

    num_roots: int
    exponent: float
    cv: float


@dataclass(frozen=True)
class GridSettings:
    cases: tuple[Case, ...]
    requests: int
    steps: int
    """Halvings of the span of loads."""
    most_devices: int


def grid_rows(settings: GridSettings, seed: int) -> list[dict[str, float | None]]:
    return [_Cell(case, settings, seed).row() for case in settings.cases]


def grid_figures(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return geometric means over the grid; a way that reaches the target nowhere counts with the least load."""
    return {
        "rate_over_replication_99": geometric_mean(
            [_ratio(row, "load_99_plan", "load_99_replication") for row in rows]
        ),
        "devices_saved_99": geometric_mean(_ratio(row, "devices_replication", "devices_plan") for row in rows),
        "held_out_loss_points": 100 * mean(max(0.0, (row["training"] or 0.0) - (row["plan"] or 0.0)) for row in rows),
    }


def problem_of(case: Case, num_devices: int, rate_per_s: float, requests: int, seed: int) -> Problem:
    models = tuple(even_model(f"r{number}", _ALONE_US, _SIZE_BYTES) for number in range(case.num_roots))
    where = devices(num_devices, round(_ROOTS_PER_DEVICE * _SIZE_BYTES), num_devices)
    return Problem(models, where, traffic_of(case, rate_per_s, requests, seed))


def traffic_of(case: Case, rate_per_s: float, requests: int, seed: int) -> Traffic:
    rates = [rate_per_s * share for share in shares(case.num_roots, case.exponent)]
    return gamma_traffic(rates, case.cv, requests / rate_per_s, [_SLO_SCALE * _ALONE_US] * case.num_roots, seed)


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
    """One cell of the grid, at any load and on any number of devices."""

    def __init__(self, case: Case, settings: GridSettings, seed: int) -> None:
        self._case, self._settings, self._seed = case, settings, seed

    def row(self) -> dict[str, float | None]:
        case, num_devices = self._case, self._case.num_roots
        steps = self._settings.steps
        loads = {
            way: largest_where(partial(self._reaches, way, num_devices), _LEAST_LOAD, _MOST_LOAD, steps)
            for way in ("plan", "replication")
        }
        needed = {f"devices_{way}": self._fewest_devices(way, loads["plan"]) for way in loads}
        found = {way: self._attained(way, num_devices, loads["plan"]) for way in WAYS}
        return {
            "roots": case.num_roots,
            "exponent": case.exponent,
            "cv": case.cv,
            **{f"load_99_{way}": load for way, load in loads.items()},
            **needed,
            **{way: held_out for way, (_, held_out) in found.items()},
            "training": found["plan"][0],
        }

    def _reaches(self, way: str, num_devices: int, load: float) -> bool:
        return self._attained(way, num_devices, load)[1] >= TARGET

    def _fewest_devices(self, way: str, load: float) -> float:
        """Return the fewest devices that reach the target at a rate; the most that are tried, if none do."""
        count, most = max(1, round(self._case.num_roots / _ROOTS_PER_DEVICE)), self._settings.most_devices
        while count < most and not self._reaches(way, count, load):
            count += max(1, count // 8)
        return min(count, most)

    def _attained(self, way: str, num_devices: int, load: float) -> tuple[float, float]:
        """Return what is in time of the requests that the placement was made for, and of others."""
        requests, rate_per_s = self._settings.requests, load * self._case.num_roots * 1e6 / _ALONE_US
        problem = problem_of(self._case, num_devices, rate_per_s, requests, self._seed)
        groups = placed(way, problem).groups
        held_out = traffic_of(self._case, rate_per_s, requests, self._seed + _HELD_OUT)
        times = problem.forms.times
        training, unseen = (GroupSimulator(each, times).play(groups) for each in (problem.traffic, held_out))
        return training.attainment, unseen.attainment


def _ratio(row: Mapping[str, float | None], above: str, below: str) -> float:
    return (row[above] or 0.0) / max(0.01, row[below] or 0.0)

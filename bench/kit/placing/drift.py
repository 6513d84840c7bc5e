"""Traffic that drifts from window to window, and what placements make of it: static, placed anew with moves, and free.

In each window roots may change their ranks, and one is asked several times as much. A new placement is made of what was
recorded in the window's first part, and then stands for the rest of it; its steps are played one after the other, with
the groups away that they change. The free one is made for each window beforehand, by requests of the same kind, and
moves take no time. Queues are forgotten at each change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from bench.kit.placing.loads import devices, even_model, gamma_traffic, shares
from builder.placement.planner.change import Step
from builder.placement.planner.group import Group
from builder.placement.planner.group_simulator import GroupSimulator, PlacedGroup
from builder.placement.planner.hysteresis import Hysteresis
from builder.placement.planner.model import Model
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.plan import Plan
from builder.placement.planner.planner import Fleet, plan, problem_of
from builder.placement.planner.problem import NO_STAGES, Problem
from builder.placement.planner.replan import replan, selection_of
from builder.placement.planner.slices import Slices
from builder.placement.planner.traffic import Traffic

_SIZE_BYTES = 1_000_000_000
ROOTS_PER_DEVICE = 2.5
_SLO_SCALE = 5
_UNSEEN = 7_919
"""Added to a window's seed for requests of the same kind."""


class Way(StrEnum):
    STATIC = "static"
    REPLACED = "replaced"
    """Where it pays."""
    ALWAYS = "always"
    """Whatever is found, also where it gains nothing."""
    FREE = "free"


@dataclass(frozen=True)
class DriftSettings:
    """How the traffic is drawn.

    Attributes:
        drifts: What happens at the begin of each window after the first: whether it drifts.
        observed: The share of a window that is recorded before a placement is made of it.
        surge: How many times as much the root is asked that surges in a drifting window.
        load: Of all devices, in the mean; that of the others falls where one surges.
        alone_us: What a row takes of a device; a request has five times as long.
        slowness: Times as long as that it takes when it is played; rates, deadlines and plans know nothing of it.
    """

    num_roots: int = 12
    num_devices: int = 10
    drifts: tuple[bool, ...] = (True, False, True, False, True, True)
    window_s: float = 900.0
    observed: float = 0.1
    surge: float = 5.0
    load: float = 0.35
    exponent: float = 1.0
    cv: float = 2.0
    alone_us: int = 12_000
    slowness: float = 1.0
    costs: MoveCosts = field(default=MoveCosts())


@dataclass(frozen=True)
class Window:
    """Requests of a window, others of the same kind, and whether it differs from the window before."""

    traffic: Traffic
    alike: Traffic
    drifts: bool


def drift_rows(settings: DriftSettings, seed: int) -> list[dict[str, float]]:
    """Play all ways; a row a window. The first window is what the static placement is made for, and is not played."""
    history, *windows = windows_of(settings, seed)
    fleet = _fleet(settings, history.alike)
    real = _slowed(fleet, settings)
    first = plan(fleet, seed)
    placed = {Way.REPLACED: first, Way.ALWAYS: first}
    hystereses = hystereses_of(settings, settings.costs)
    rows = []
    for number, window in enumerate(windows, start=1):
        row: dict[str, float] = {"window": number, "drifts": window.drifts, "requests": len(window.traffic)}
        row[Way.STATIC] = _Played.whole(real, first.groups, window.traffic).attainment
        for way, hysteresis in hystereses.items():
            played, placed[way] = _replaced(fleet, placed[way], window.traffic, settings, hysteresis, seed)
            row |= {way: played.attainment, f"{way}_steps": len(_steps(placed[way])), f"{way}_nowhere": played.nowhere}
        own = plan(_fleet(settings, window.alike), seed)
        row[Way.FREE] = _Played.whole(real, own.groups, window.traffic).attainment
        rows.append(row)
    return rows


def hystereses_of(settings: DriftSettings, costs: MoveCosts) -> Mapping[Way, Hysteresis]:
    """Return what a change has to gain by the ways that place anew within a window."""
    return {
        Way.REPLACED: Hysteresis((1 - settings.observed) * settings.window_s, costs),
        Way.ALWAYS: Hysteresis(1e-3, costs, least_points=-100.0, least_return=-1e12),
    }


def drift_figures(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return shares of all requests; `regained` is the part of what free moves gain that is left with their costs."""
    requests = sum(row["requests"] for row in rows)
    share = {way: sum(row[way] * row["requests"] for row in rows) / requests for way in Way}
    possible = share[Way.FREE] - share[Way.STATIC]
    return {
        **{f"attainment_{way}": share[way] for way in Way},
        "regained": (share[Way.REPLACED] - share[Way.STATIC]) / possible if possible else 1.0,
        "steps_replaced": sum(row[f"{Way.REPLACED}_steps"] for row in rows),
        "steps_always": sum(row[f"{Way.ALWAYS}_steps"] for row in rows),
        "nowhere_requests": sum(row[f"{Way.REPLACED}_nowhere"] for row in rows),
    }


def windows_of(settings: DriftSettings, seed: int) -> list[Window]:
    rng = np.random.default_rng(seed)
    total_per_s = settings.load * settings.num_devices * 1e6 / settings.alone_us
    rates = total_per_s * np.array(shares(settings.num_roots, settings.exponent))
    found = [_window(settings, rates.tolist(), int(rng.integers(1 << 30)), drifts=False)]
    drifted = rates
    for drifts in settings.drifts:
        if drifts:
            drifted = rng.permutation(rates)
            drifted[rng.integers(len(rates) // 2)] *= settings.surge
            drifted *= total_per_s / drifted.sum()
        found.append(_window(settings, drifted.tolist(), int(rng.integers(1 << 30)), drifts))
    return found


def _window(settings: DriftSettings, rates: Sequence[float], seed: int, drifts: bool) -> Window:
    patience_us = [_SLO_SCALE * settings.alone_us] * len(rates)
    drawn = [gamma_traffic(rates, settings.cv, settings.window_s, patience_us, each) for each in (seed, seed + _UNSEEN)]
    return Window(drawn[0], drawn[1], drifts)


def _fleet(settings: DriftSettings, traffic: Traffic) -> Fleet:
    models = _models(settings, settings.alone_us)
    where = devices(settings.num_devices, round(ROOTS_PER_DEVICE * _SIZE_BYTES), settings.num_devices)
    fingerprints = {model.root: model.root for model in models}
    return Fleet(models, where, fingerprints, traffic, stage_counts=NO_STAGES)


def _slowed(fleet: Fleet, settings: DriftSettings) -> Fleet:
    """Return the fleet as requests find it, which plans know nothing of."""
    return replace(fleet, models=_models(settings, round(settings.slowness * settings.alone_us)))


def _models(settings: DriftSettings, takes_us: int) -> tuple[Model, ...]:
    return tuple(even_model(f"r{number}", takes_us, _SIZE_BYTES) for number in range(settings.num_roots))


@dataclass(frozen=True)
class _Played:
    """How many of some requests were in time, and how many met no group with their root."""

    met: int
    requests: int
    nowhere: int

    @classmethod
    def whole(cls, fleet: Fleet, groups: Sequence[Group], traffic: Traffic) -> _Played:
        """Play requests on groups that do not change meanwhile."""
        problem = _problem(fleet)
        placed: list[PlacedGroup] = selection_of(problem, groups).groups
        if not len(traffic) or not placed:
            return cls(0, len(traffic), len(traffic))
        played = GroupSimulator(traffic, problem.forms.times).play(placed)
        held = {model for group in placed for model in group.models}
        return cls(int(played.is_met.sum()), len(traffic), int((~np.isin(traffic.models, list(held))).sum()))

    @property
    def attainment(self) -> float:
        return self.met / max(1, self.requests)

    def __add__(self, other: _Played) -> _Played:
        return _Played(self.met + other.met, self.requests + other.requests, self.nowhere + other.nowhere)


def _problem(fleet: Fleet) -> Problem:
    return problem_of(fleet, Slices(fleet.traffic))


def _steps(made: Plan) -> Sequence[Step]:
    return () if made.change is None else made.change.steps


def _replaced(
    fleet: Fleet, before: Plan, traffic: Traffic, settings: DriftSettings, hysteresis: Hysteresis, seed: int
) -> tuple[_Played, Plan]:
    """Play a window in which the placement is made anew once its first part is recorded."""
    real = _slowed(fleet, settings)
    begin_us = int(traffic.arrived_us[0])
    now_us = begin_us + round(1e6 * settings.observed * settings.window_s)
    recorded = traffic.within(begin_us, now_us)
    groups = before.groups
    total = _Played.whole(real, groups, recorded)
    made = replan(replace(fleet, traffic=recorded), before, hysteresis, seed)
    for step in _steps(made):
        then_us = now_us + round(1e6 * step.takes_s)
        away = {group.name for group in step.groups} | set(step.stops)
        left = [group for group in groups if group.name not in away]
        total += _Played.whole(real, left, traffic.within(now_us, then_us))
        now_us, groups = then_us, step.after(groups)
    return total + _Played.whole(real, groups, traffic.within(now_us, int(traffic.arrived_us[-1]) + 1)), made

"""AlpaServe's ablation: 60 models of six sizes on 32 GPUs, placed in turn, greedily, and with groups searched for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.kit.placing.loads import devices, even_model, gamma_traffic, shares
from builder.placement.planner.baselines import round_robin
from builder.placement.planner.frames import by_size
from builder.placement.planner.group_simulator import GroupSimulator
from builder.placement.planner.problem import Problem
from builder.placement.planner.search import best_selection
from builder.placement.planner.selecting import Selector

PUBLISHED = {"round_robin": 0.875, "greedy": 0.898, "plan": 0.960}
_SIZES_GB_AND_MS = ((2.4, 151), (5.4, 238), (13.4, 395), (2.6, 150), (4.8, 171), (10.6, 234))
_MEMORY_BYTES, _CV, _EXPONENT, _SLO_SCALE, _STAGES = 13 << 30, 4.0, 0.5, 5, 4
_HELD_OUT = 1_000_003


@dataclass(frozen=True)
class MixedSettings:
    of_each: int = 10
    num_devices: int = 32
    rate_per_s: float = 64.0
    duration_s: float = 120.0


def mixed_row(settings: MixedSettings, seed: int) -> dict[str, float]:
    """Return what the three ways answer in time of a traffic that none of them was made for."""
    problem, judge = _problem(settings, seed), _problem(settings, seed + _HELD_OUT)
    selector = Selector(problem, range(len(problem.models)), problem.traffic)
    selections = {
        "round_robin": round_robin(problem),
        "greedy": selector.fast(by_size(problem, range(settings.num_devices), _STAGES)).selection,
        "plan": best_selection(problem).selection,
    }
    simulator = GroupSimulator(judge.traffic, problem.forms.times)
    found = {name: simulator.play(each.groups).attainment for name, each in selections.items()}
    return {**found, **{f"published_{name}": share for name, share in PUBLISHED.items()}}


def mixed_figures(row: Mapping[str, float]) -> dict[str, float]:
    return {"plan_over_round_robin": row["plan"] / row["round_robin"]}


def _problem(settings: MixedSettings, seed: int) -> Problem:
    # The sizes in turn, so that busy and calm models are of all sizes.
    models = tuple(
        even_model(f"{size}GB-{number}", 1_000 * ms, round(1e9 * size))
        for number in range(settings.of_each)
        for size, ms in _SIZES_GB_AND_MS
    )
    rates = [settings.rate_per_s * share for share in shares(len(models), _EXPONENT)]
    patience_us = [_SLO_SCALE * model.alone_us for model in models]
    traffic = gamma_traffic(rates, _CV, settings.duration_s, patience_us, seed)
    return Problem(models, devices(settings.num_devices, _MEMORY_BYTES, settings.num_devices), traffic)

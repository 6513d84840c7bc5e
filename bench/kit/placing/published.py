"""The setting of AlpaServe's Table 2: 24 models of 2.7 B parameters on 16 GPUs, by replication and by even stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from bench.kit.placing.loads import devices, even_model, gamma_traffic, shares
from builder.placement.planner.baselines import replicated
from builder.placement.planner.frames import by_size
from builder.placement.planner.group_simulator import GroupSimulator
from builder.placement.planner.problem import Problem
from builder.placement.planner.selecting import Selector
from builder.placement.planner.selection import Selection

REPLICATION = {1.5: 0.297, 2.0: 0.369, 3.0: 0.495, 5.0: 0.649, 10.0: 0.831}
"""As published, of the real system."""
ALPASERVE = {1.5: None, 2.0: 0.790, 3.0: 0.914, 5.0: 0.976, 10.0: 1.0}
STAGES = (4, 8)
BETWEEN = (2.0, 3.0, 5.0)
"""The scales at which AlpaServe's real stages, which are uneven, are compared with even ones."""
_ALONE_US, _SIZE_BYTES, _MEMORY_BYTES = 238_000, 5_200_000_000, 13 << 30
_LOST_US = 15_000
"""Of each time limit: what a request takes outside of the devices, and what AlpaServe's admission keeps."""
_MODELS, _DEVICES, _RATE_PER_S, _CV, _EXPONENT = 24, 16, 40.0, 4.0, 0.5


@dataclass(frozen=True)
class PublishedSettings:
    seeds: int
    duration_s: float = 200.0


def published_rows(settings: PublishedSettings, seed: int) -> list[dict[str, float | None]]:
    """Return the attainment of each way for each time limit, the mean over the seeds."""
    return [
        {
            "slo_scale": scale,
            "published_replication": REPLICATION[scale],
            **_attainments(scale, settings, seed),
            "published_alpaserve": ALPASERVE[scale],
        }
        for scale in REPLICATION
    ]


def published_figures(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    by_scale = {row["slo_scale"]: row for row in rows}
    apart = [abs(_of(row, "replication") - _of(row, "published_replication")) for row in rows]
    outside = [_outside(by_scale[scale]) for scale in BETWEEN]
    return {
        "replication_points_apart": 100 * max(apart),
        "replication_points_apart_mean": 100 * mean(apart),
        "alpaserve_points_outside": 100 * max(outside),
    }


def problem_of(scale: float, duration_s: float, seed: int) -> Problem:
    models = tuple(even_model(f"bert-2.7b-{number}", _ALONE_US, _SIZE_BYTES) for number in range(_MODELS))
    rates = [_RATE_PER_S * share for share in shares(_MODELS, _EXPONENT)]
    patience_us = round(scale * _ALONE_US) - _LOST_US
    traffic = gamma_traffic(rates, _CV, duration_s, [patience_us] * _MODELS, seed)
    return Problem(models, devices(_DEVICES, _MEMORY_BYTES, _DEVICES), traffic)


def _attainments(scale: float, settings: PublishedSettings, seed: int) -> dict[str, float]:
    """As in the paper, placements are made for the very requests that they are judged by."""
    found: dict[str, list[float]] = {"replication": [], **{f"stages_{stages}": [] for stages in STAGES}}
    for number in range(settings.seeds):
        problem = problem_of(scale, settings.duration_s, seed + number)
        found["replication"].append(_attainment(problem, replicated(problem)))
        for stages in STAGES:
            frames = by_size(problem, range(_DEVICES), stages)
            selector = Selector(problem, range(_MODELS), problem.traffic, covers=False)
            found[f"stages_{stages}"].append(selector.fast(frames).played.attainment)
    return {name: mean(each) for name, each in found.items()}


def _attainment(problem: Problem, selection: Selection) -> float:
    return GroupSimulator(problem.traffic, problem.forms.times).play(selection.groups).attainment


def _outside(row: Mapping[str, float | None]) -> float:
    """Return how far the published share lies outside of those of four and of eight even stages."""
    share = _of(row, "published_alpaserve")
    return max(0.0, _of(row, "stages_4") - share, share - _of(row, "stages_8"))


def _of(row: Mapping[str, float | None], name: str) -> float:
    return row[name] or 0.0

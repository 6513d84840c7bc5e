"""Cases so small that the best placement is found by trying all: how near to it is the search?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np

from bench.kit.placing.loads import devices, even_model, gamma_traffic
from bench.kit.placing.optimum import optimum
from builder.placement.planner.frames import framings
from builder.placement.planner.problem import Problem
from builder.placement.planner.search import best_selection
from builder.placement.planner.selecting import Selector

_SIZES = (480, 600, 720, 960)
_ALONE_US = (48_000, 60_000, 120_000)


def small_rows(count: int, requests: int, seed: int) -> list[dict[str, float]]:
    rng = np.random.default_rng(seed)
    return [_row(small_problem(rng, requests)) for _ in range(count)]


def small_figures(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {
        "plan_over_optimum": mean(row["plan"] / row["optimum"] for row in rows),
        "plan_over_optimum_worst": min(row["plan"] / row["optimum"] for row in rows),
        "fast_over_full": mean(row["fast"] / row["full"] for row in rows),
    }


def small_problem(rng: np.random.Generator, requests: int) -> Problem:
    """Draw up to 3 models, of which few fit on a device, and up to 4 devices; bursts near what these can do."""
    num_models, num_devices = int(rng.integers(2, 4)), int(rng.integers(2, 5))
    alone_us = rng.choice(_ALONE_US, num_models).tolist()
    models = tuple(
        even_model(f"r{number}", us, int(rng.choice(_SIZES)), halves=24) for number, us in enumerate(alone_us)
    )
    weights = rng.choice([1, 1, 2, 6], num_models).tolist()
    work_us = sum(weight * us for weight, us in zip(weights, alone_us, strict=True))
    unit = float(rng.choice([0.2, 0.5, 0.8])) * num_devices * 1e6 / work_us
    rates = [unit * weight for weight in weights]
    patience_us = [int(rng.choice([2, 5, 10])) * us for us in alone_us]
    cv, seed = float(rng.choice([1.0, 4.0])), int(rng.integers(2**31))
    traffic = gamma_traffic(rates, cv, requests / sum(rates), patience_us, seed)
    return Problem(models, devices(num_devices, 1_000, num_devices), traffic)


def _row(problem: Problem) -> dict[str, float]:
    selector = Selector(problem, range(len(problem.models)), problem.traffic)
    frames = framings(problem, range(len(problem.devices)))
    return {
        "roots": len(problem.models),
        "devices": len(problem.devices),
        "requests": len(problem.traffic),
        "optimum": optimum(problem).played.attainment,
        "plan": best_selection(problem).played.attainment,
        "full": max((selector.beam(each) for each in frames), key=lambda each: each.score).played.attainment,
        "fast": max((selector.fast(each) for each in frames), key=lambda each: each.score).played.attainment,
    }

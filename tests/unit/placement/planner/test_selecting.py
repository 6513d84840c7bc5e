"""Algorithm 1 and its fast form: by hand, within their memory, and against the optimum."""

from __future__ import annotations

import random

import numpy as np

from bench.kit.placing.optimum import optimum
from builder.placement.planner.frames import framings, single_frames
from builder.placement.planner.problem import Problem
from builder.placement.planner.search import best_selection
from builder.placement.planner.selecting import Selector
from builder.placement.planner.selection import Selection
from placement_cases import devices, gamma_traffic, model_of, random_problem


def selector_of(problem: Problem, covers: bool = True) -> Selector:
    return Selector(problem, range(len(problem.models)), problem.traffic, covers)


def require_fits(problem: Problem, selection: Selection) -> None:
    for frame, held in zip(selection.frames, selection.held, strict=True):
        shape = problem.forms.shape(frame.num_stages)
        for stage, device in enumerate(frame.devices):
            taken = sum(int(problem.forms.stage_bytes[shape, model, stage]) for model in held)
            assert taken <= problem.devices[device].memory_bytes
    used = [device for frame in selection.frames for device in frame.devices]
    assert len(set(used)) == len(used)


def test_the_busy_model_gets_the_second_replica() -> None:
    """Three devices, one model on each; two models, one with three times the traffic of the other."""
    models = (model_of("calm", 120_000, 960), model_of("busy", 120_000, 960))
    traffic = gamma_traffic([2.0, 12.0], 1.0, 200.0, [240_000] * 2, np.random.default_rng(1))
    problem = Problem(models, devices(3), traffic)
    for found in (selector_of(problem).fast(single_frames(problem)), selector_of(problem).beam(single_frames(problem))):
        assert sorted(sorted(held) for held in found.selection.held) == [[0], [1], [1]]
        assert found.num_missing == 0


def test_a_model_with_little_traffic_stands_somewhere_where_all_are_to() -> None:
    models = (model_of("rare", 120_000, 960), model_of("busy", 120_000, 960))
    traffic = gamma_traffic([0.05, 14.0], 4.0, 200.0, [240_000] * 2, np.random.default_rng(1))
    problem = Problem(models, devices(2), traffic)
    assert selector_of(problem).fast(single_frames(problem)).selection.models == {0, 1}
    greedy = selector_of(problem, covers=False).fast(single_frames(problem))
    assert greedy.selection.models == {1} and greedy.num_missing == 0


def test_searches_keep_to_the_memory_and_come_near_to_the_optimum(seed: int) -> None:
    chance = random.Random(seed)
    plans, fast = [], []
    for _ in range(12):
        problem = random_problem(chance)
        best = optimum(problem)
        require_fits(problem, best.selection)
        found = best_selection(problem)
        require_fits(problem, found.selection)
        assert found.score <= best.score
        plans.append((found.played.attainment + 1e-9) / (best.played.attainment + 1e-9))
        for frames in framings(problem, range(len(problem.devices))):
            quick, full = selector_of(problem).fast(frames), selector_of(problem).beam(frames)
            require_fits(problem, quick.selection)
            require_fits(problem, full.selection)
            if full.num_missing == quick.num_missing and full.played.attainment:
                fast.append(quick.played.attainment / full.played.attainment)
    assert np.mean(plans) >= 0.98, plans
    assert np.mean(fast) >= 0.95


def test_many_replicas_are_placed_several_at_a_time(seed: int) -> None:
    """With some hundreds of replicas the fast form simulates less often, and still uses the memory well."""
    rng = np.random.default_rng(seed)
    models = tuple(model_of(f"r{number}", 48_000, 120) for number in range(60))
    rates = rng.permutation(np.arange(1, 61) ** -0.5) * 12
    traffic = gamma_traffic(list(rates), 1.0, 20.0, [200_000] * 60, rng)
    problem = Problem(models, devices(16), traffic)
    found = selector_of(problem).fast(single_frames(problem))
    require_fits(problem, found.selection)
    assert found.num_missing == 0 and found.played.attainment > 0.97

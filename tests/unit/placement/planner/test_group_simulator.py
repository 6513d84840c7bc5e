"""The fast group simulator against the slow reference, request by request, and against what queues are known to do."""

from __future__ import annotations

import random

import numpy as np
import pytest

import group_reference
from backends.errors import InvalidArgumentError
from builder.placement.planner.group_simulator import GroupSimulator, PlacedGroup, StageTimes
from builder.placement.planner.traffic import Traffic, one_after_the_other

SHAPES = (1, 2, 4)


def times_of(
    latency_us: dict[tuple[int, int], tuple[int, ...]], busy_us: dict[tuple[int, int], tuple[int, ...]], models: int
) -> StageTimes:
    tables = []
    for times in (latency_us, busy_us):
        table = np.zeros((len(SHAPES), models, max(SHAPES)), np.int64)
        for (stages, model), each in times.items():
            table[SHAPES.index(stages), model, :stages] = each
        tables.append(table)
    return StageTimes(SHAPES, *tables)


def test_every_request_ends_as_in_the_reference(seed: int) -> None:
    chance = random.Random(seed)
    outcomes: set[bool] = set()
    for number in range(150):
        models, step_us = chance.randint(1, 4), chance.choice([1, 10, 300])
        keys = [(stages, model) for stages in SHAPES for model in range(models)]
        busy_us = {key: tuple(chance.randint(1, 50) for _ in range(key[0])) for key in keys}
        longer_us = chance.choice([0, 40])
        latency_us = {
            key: tuple(each + (longer_us and chance.randint(0, longer_us)) for each in busy_us[key]) for key in keys
        }
        groups = [
            PlacedGroup(chance.choice(SHAPES), frozenset(m for m in range(models) if chance.random() < 0.6))
            for _ in range(chance.randint(1, 4))
        ]
        arrived_us = sorted(step_us * chance.randint(0, 40) for _ in range(chance.randint(1, 40)))
        requests = [(at_us, chance.randrange(models), at_us + chance.randint(1, 400)) for at_us in arrived_us]
        expected = group_reference.play(
            requests, [g.num_stages for g in groups], [g.models for g in groups], latency_us, busy_us
        )
        traffic = Traffic(*(np.array(column, np.int64) for column in zip(*requests, strict=True)))
        played = GroupSimulator(traffic, times_of(latency_us, busy_us, models)).play(groups)
        met = np.nonzero(played.is_met)[0].tolist()
        ends = {request: int(played.finished_us[request]) for request in met}
        assert ends == expected, f"case {number} of seed {seed}"
        outcomes |= set(played.is_met.tolist())
    assert outcomes == {True, False}


def poisson(rate_per_s: float, count: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (1e6 * np.cumsum(rng.exponential(1 / rate_per_s, count))).astype(np.int64)


def test_waits_are_those_of_queueing_theory(seed: int) -> None:
    """M/D/1 for one model each, the same over two stages, and both models on both devices."""
    rng, rate_per_s, work_us, count = np.random.default_rng(seed), 1.5, 400_000, 150_000
    latency_us = {(1, m): (work_us,) for m in (0, 1)} | {(2, m): (work_us // 2,) * 2 for m in (0, 1)}
    latency_us |= {(4, m): (work_us // 4,) * 4 for m in (0, 1)}
    times = times_of(latency_us, latency_us, 2)
    traffic = Traffic.of_models([poisson(rate_per_s, count, rng) for _ in range(2)], [10**12] * 2)
    simulator = GroupSimulator(traffic, times)
    load = rate_per_s * work_us / 1e6
    alone = simulator.play([PlacedGroup(1, frozenset({0})), PlacedGroup(1, frozenset({1}))])
    assert alone.mean_latency_us == pytest.approx(work_us + load * work_us / (2 * (1 - load)), rel=0.03)
    split = simulator.play([PlacedGroup(2, frozenset({0, 1}))])
    assert split.mean_latency_us == pytest.approx(work_us + load * work_us / 2 / (2 * (1 - load)), rel=0.03)
    pooled = simulator.play([PlacedGroup(1, frozenset({0, 1}))] * 2)
    assert pooled.mean_latency_us == pytest.approx(516_000, rel=0.03)  # M/D/2
    assert alone.used.tolist() == pytest.approx([load, load], rel=0.02) and split.used[0] == pytest.approx(load, 0.02)


def test_a_model_that_stands_nowhere_is_rejected() -> None:
    traffic = Traffic.of_models([np.array([0, 5]), np.array([3])], [100, 100])
    times = times_of({(1, 0): (10,), (1, 1): (10,)}, {(1, 0): (10,), (1, 1): (10,)}, 2)
    played = GroupSimulator(traffic, times).play([PlacedGroup(1, frozenset({0}))])
    assert played.is_met.tolist() == [True, False, True]
    assert played.unserved(2).tolist() == [0, 1] and played.attainment == pytest.approx(2 / 3)
    assert played.mean_latency_us == pytest.approx((10 + 15) / 2)


def test_slices_do_not_meet() -> None:
    traffic = Traffic.of_models([np.array([0, 10, 1_000, 1_010])], [50])
    joined = one_after_the_other([traffic.within(1_000, 2_000), traffic.within(5, 20), traffic.within(20, 30)])
    assert joined.arrived_us.tolist() == [0, 10, 61] and joined.deadlines_us.tolist() == [50, 60, 111]
    assert len(one_after_the_other([])) == 0 and joined.of([1]).counts(2).tolist() == [0, 0]


def test_requests_are_in_order() -> None:
    with pytest.raises(InvalidArgumentError, match="order of their arrival"):
        Traffic(np.array([2, 1]), np.array([0, 0]), np.array([9, 9]))
    with pytest.raises(InvalidArgumentError, match="an arrival, a model and a deadline"):
        Traffic(np.array([1, 2]), np.array([0]), np.array([9, 9]))

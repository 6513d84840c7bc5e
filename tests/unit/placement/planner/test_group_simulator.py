"""The fast group simulator against the slow reference, request by request, and against what queues are known to do."""

from __future__ import annotations

import random

import numpy as np
import pytest

import group_reference
from backends.errors import InvalidArgumentError
from backends.scheduling.cost_model import CostModel
from backends.scheduling.policies import FirstComeFirstServed
from backends.scheduling.settings import Capacity
from builder.placement.planner.group_simulator import GroupSimulator, PlacedGroup, StageTimes
from builder.placement.planner.traffic import Int64, Traffic, one_after_the_other
from builder.placement.simulated_load import SimulatedLoad
from builder.placement.simulator import Simulator

SHAPES = (1, 2, 4)


ByShape = dict[tuple[int, int], tuple[int, ...]]


def table_of(times: ByShape, models: int) -> Int64:
    table = np.zeros((len(SHAPES), models, max(SHAPES)), np.int64)
    for (stages, model), each in times.items():
        table[SHAPES.index(stages), model, :stages] = each
    return table


def times_of(latency_us: ByShape, models: int) -> StageTimes:
    return StageTimes.of_requests(SHAPES, table_of(latency_us, models), table_of(latency_us, models))


def test_every_request_ends_as_in_the_reference(seed: int) -> None:
    chance = random.Random(seed)
    outcomes: set[bool] = set()
    sizes: list[int] = []
    num_dropped = 0
    for number in range(150):
        models, step_us = chance.randint(1, 4), chance.choice([1, 10, 300])
        keys = [(stages, model) for stages in SHAPES for model in range(models)]
        busy_us = {key: tuple(chance.randint(1, 50) for _ in range(key[0])) for key in keys}
        longer_us = chance.choice([0, 40])
        latency_us = {
            key: tuple(each + (longer_us and chance.randint(0, longer_us)) for each in busy_us[key]) for key in keys
        }
        further_us = {key: tuple(chance.randint(0, 20) for _ in range(key[0])) for key in keys}
        full_rows = [chance.choice([1, 1, 2, 3, 8]) for _ in range(models)]
        groups = [
            PlacedGroup(chance.choice(SHAPES), frozenset(m for m in range(models) if chance.random() < 0.6))
            for _ in range(chance.randint(1, 4))
        ]
        arrived_us = sorted(step_us * chance.randint(0, 40) for _ in range(chance.randint(1, 40)))
        requests = [(at_us, chance.randrange(models), at_us + chance.randint(1, 400)) for at_us in arrived_us]
        by_group = [g.num_stages for g in groups], [g.models for g in groups]
        expected = group_reference.play(requests, *by_group, latency_us, busy_us, further_us, full_rows)
        traffic = Traffic(*(np.array(column, np.int64) for column in zip(*requests, strict=True)))
        tables = [table_of(each, models) for each in (latency_us, busy_us, further_us)]
        played = GroupSimulator(traffic, StageTimes(SHAPES, *tables, np.array(full_rows))).play(groups)
        met = np.nonzero(played.is_met)[0].tolist()
        ends_us = {request: int(played.finished_us[request]) for request in met}
        assert ends_us == expected.ends_us, f"case {number} of seed {seed}"
        stage_us = played.used * [group.num_stages for group in groups] * max(1, traffic.duration_us)
        assert stage_us.round().astype(int).tolist() == expected.used_us, f"case {number} of seed {seed}"
        outcomes |= set(played.is_met.tolist())
        sizes += expected.sizes
        num_dropped += expected.num_dropped
    assert outcomes == {True, False} and num_dropped and {1, 2, 3, 8} <= set(sizes), f"seed {seed}"


def poisson(rate_per_s: float, count: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (1e6 * np.cumsum(rng.exponential(1 / rate_per_s, count))).astype(np.int64)


def mean_latency_us(model: CostModel, full_rows: int, arrived_us: Int64) -> float:
    """Play requests on one simulated server, without deadlines and admission."""
    count, duration_s = len(arrived_us), float(arrived_us[-1]) / 1e6
    one_token, one_tenant = np.ones(count, np.int64), np.zeros(count, np.int64)
    load = SimulatedLoad.in_order(duration_s, arrived_us, arrived_us, one_token, one_tenant, None)
    played = Simulator(FirstComeFirstServed(), model, Capacity(max_rows=full_rows), max_waiting=count).run(load)
    assert played.is_answered.all()
    return float((played.answered_us - load.arrived_us).mean())


def test_waits_are_those_of_queueing_theory(seed: int) -> None:
    """M/D/1 for one model each, the same over two stages, and both models on both devices."""
    rng, rate_per_s, work_us, count = np.random.default_rng(seed), 1.5, 400_000, 150_000
    latency_us = {(1, m): (work_us,) for m in (0, 1)} | {(2, m): (work_us // 2,) * 2 for m in (0, 1)}
    latency_us |= {(4, m): (work_us // 4,) * 4 for m in (0, 1)}
    times = times_of(latency_us, 2)
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


def test_batches_are_those_of_the_serve_loop_in_virtual_time(seed: int) -> None:
    """One root on one device, first come, first served: what the simulator of a server makes of the same arrivals."""
    constant_us, per_row_us, full_rows = 9_000, 1_000, 16
    model = CostModel(float(constant_us), float(per_row_us), 0.0, 0.0, 0.0)
    rng = np.random.default_rng(seed)
    for load in (0.1, 0.5, 0.9):
        rate_per_s = load * full_rows * 1e6 / (constant_us + full_rows * per_row_us)
        arrived_us = poisson(rate_per_s, 20_000, rng)
        alone_us = constant_us + per_row_us
        one = np.full((1, 1, 1), alone_us)
        times = StageTimes((1,), one, one, np.full((1, 1, 1), per_row_us), np.array([full_rows]))
        played = GroupSimulator(Traffic.of_models([arrived_us], [10**12]), times).play([PlacedGroup(1, frozenset({0}))])
        simulated = mean_latency_us(model, full_rows, arrived_us)
        assert played.mean_latency_us == pytest.approx(simulated, rel=0.01), f"load {load}, seed {seed}"


def test_a_model_that_stands_nowhere_is_rejected() -> None:
    traffic = Traffic.of_models([np.array([0, 5]), np.array([3])], [100, 100])
    times = times_of({(1, 0): (10,), (1, 1): (10,)}, 2)
    played = GroupSimulator(traffic, times).play([PlacedGroup(1, frozenset({0}))])
    assert played.is_met.tolist() == [True, False, True]
    assert played.unserved(2).tolist() == [0, 1] and played.attainment == pytest.approx(2 / 3)
    assert played.mean_latency_us == pytest.approx((10 + 15) / 2)


def test_requests_that_others_made_late_are_rejected_when_their_batch_begins() -> None:
    """Two batches wait behind one that runs; as the first of them grows, the second one would end at 350."""
    one = np.full((1, 2, 1), 100)
    times = StageTimes((1,), one, one, np.full((1, 2, 1), 50), np.array([8, 8]))
    for deadline_us, is_met in ((350, True), (349, False)):
        deadlines_us = np.array([1_000, 1_000, deadline_us, 1_000])
        traffic = Traffic(np.array([0, 1, 2, 50]), np.array([0, 0, 1, 0]), deadlines_us)
        played = GroupSimulator(traffic, times).play([PlacedGroup(1, frozenset({0, 1}))])
        assert played.is_met.tolist() == [True, True, is_met, True]
        assert played.finished_us[played.is_met].tolist() == [100, 250, *([350] if is_met else []), 250]
        assert played.used.tolist() == [(350 if is_met else 250) / 50]


def test_tables_that_the_loop_would_leave_are_rejected() -> None:
    one, full = np.full((1, 2, 1), 100), np.array([8, 8])
    for counts, latency_us, full_rows in (
        ((1,), one, np.array([8])),
        ((1, 2), one, full),
        ((2,), one, full),
        ((1,), one, np.array([8, 0])),
        ((1,), np.full((1, 3, 1), 100), full),
    ):
        with pytest.raises(InvalidArgumentError, match="batches"):
            StageTimes(counts, latency_us, one, one, full_rows)
    with pytest.raises(InvalidArgumentError, match="more than 2 models"):
        GroupSimulator(Traffic.of_models([np.array([0])] * 3, [9] * 3), StageTimes((1,), one, one, one, full))


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

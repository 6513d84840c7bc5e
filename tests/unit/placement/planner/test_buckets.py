"""Buckets, deals of devices to them, and ways to put devices into groups."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from builder.placement.planner.buckets import bucketings, convoys, deals
from builder.placement.planner.frames import by_size, framings
from builder.placement.planner.group import Device
from builder.placement.planner.model import Model
from builder.placement.planner.problem import Problem
from builder.placement.planner.traffic import Traffic
from placement_cases import devices, model_of


def problem_of(models: Sequence[Model], patience_us: int = 10**7, where: tuple[Device, ...] = devices(4)) -> Problem:
    numbers = np.arange(len(models))
    return Problem(tuple(models), where, Traffic(np.zeros_like(numbers), numbers, numbers * 0 + patience_us))


def test_models_whose_times_differ_much_are_parted() -> None:
    models = [model_of(f"r{us}", 1_000 * us, 120) for us in (150, 234, 300)]
    assert bucketings(problem_of(models)) == [((0, 1, 2),), ((0, 1), (2,)), ((0,), (1, 2))]
    alike = [model_of(f"r{us}", 1_000 * us, 120) for us in (144, 150)]
    assert bucketings(problem_of(alike)) == [((0, 1),)]


def test_models_that_delay_others_are_parted() -> None:
    models = [model_of("quick", 120_000, 120), model_of("slow", 120_000, 120, full_batch_us=600_000)]
    assert not convoys(problem_of(models, 1_200_000))
    tight = problem_of(models, 1_199_999)
    assert [(convoy.long, convoy.short) for convoy in convoys(tight)] == [(1, 0)]
    assert ((0,), (1,)) in bucketings(tight)


def test_deals_are_near_the_demands(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        demands = [chance.choice([0.0, 0.1, 1.0, 5.0]) for _ in range(chance.randint(1, 4))]
        num_devices = chance.randint(1, 64)
        found = deals(demands, num_devices)
        assert bool(found) == (num_devices >= len(demands)), (demands, num_devices, seed)
        assert len(found) <= 24 and len(set(found)) == len(found)
        assert all(sum(deal) == num_devices and min(deal) >= 1 for deal in found)
    assert (3, 1) in deals([3.0, 1.0], 4) and (48, 16) in deals([3.0, 1.0], 64)
    assert deals([1.0, 1.0], 3) == [(1, 2), (2, 1)]


def test_many_buckets_are_dealt_without_trying_every_deal(seed: int) -> None:
    """With tight deadlines every root delays every other: as many buckets as roots."""
    chance = random.Random(seed)
    demands = [chance.choice([0.1, 1.0, 5.0]) for _ in range(24)]
    found = deals(demands, 64)
    assert len(set(found)) == len(found) == 24
    assert all(sum(deal) == 64 and min(deal) >= 1 for deal in found)
    assert max(found[0]) == found[0][demands.index(max(demands))]
    assert deals([1.0] * 16, 64)[0] == (4,) * 16


def test_groups_stay_within_hosts_and_use_every_device(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        count, hosts = chance.randint(1, 20), chance.randint(1, 4)
        where = tuple(
            Device(f"d{number}", 100 * chance.randint(1, 3), f"h{chance.randrange(hosts)}") for number in range(count)
        )
        problem = problem_of([model_of("r", 12_000, 120)], where=where)
        for frames in framings(problem, range(count)):
            used = [place for frame in frames for place in frame.devices]
            assert sorted(used) == list(range(count))
            assert all(len({where[place].host for place in frame.devices}) == 1 for frame in frames)


def test_few_devices_are_mixed_in_every_way() -> None:
    problem = problem_of([model_of("r", 12_000, 120)])
    sizes = sorted(tuple(frame.num_stages for frame in frames) for frames in framings(problem, range(4)))
    assert sizes == [(1, 1, 1, 1), (2, 1, 1), (2, 2), (3, 1), (4,)]
    seven = problem_of([model_of("r", 12_000, 120)], where=devices(7))
    assert [frame.num_stages for frame in by_size(seven, range(7), 4)] == [4, 3]


def test_stages_ascend() -> None:
    with pytest.raises(InvalidArgumentError, match="ascend from 1"):
        Problem((model_of("r", 12_000, 120),), devices(1), problem_of([model_of("r", 1_200, 1)]).traffic, 0, (2, 1))

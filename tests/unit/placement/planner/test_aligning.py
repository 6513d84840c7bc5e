"""Placements on other like devices: nothing moves where only names differ, and memory is kept to."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from builder.placement.planner.aligning import aligned
from builder.placement.planner.frames import by_host
from builder.placement.planner.problem import Problem
from builder.placement.planner.selection import Frame, Selection
from placement_cases import devices, gamma_traffic, model_of


def problem_of(num_devices: int, hosts: int, large: int = 0) -> Problem:
    """The first devices are larger."""
    models = tuple(model_of(f"r{number}", 12_000, 120 * (1 + number)) for number in range(5))
    traffic = gamma_traffic([1.0] * 5, 1.0, 10.0, [60_000] * 5, np.random.default_rng(1))
    where = [
        replace(device, memory_bytes=3_000 if number < large else 2_000)
        for number, device in enumerate(devices(num_devices, hosts=hosts))
    ]
    return Problem(models, tuple(where), traffic)


def random_selection(chance: random.Random, problem: Problem) -> Selection:
    frames: list[Frame] = []
    for places in by_host(problem.devices, range(len(problem.devices))):
        while places:
            size = min(chance.choice([1, 2, 3]), len(places))
            frames.append(Frame(tuple(places[:size])))
            places = places[size:]
    return Selection(tuple(frames), tuple(frozenset(chance.sample(range(5), chance.randint(0, 3))) for _ in frames))


def as_a_set(selection: Selection) -> set[tuple[tuple[int, ...], frozenset[int]]]:
    return {(frame.devices, held) for frame, held in zip(selection.frames, selection.held, strict=True)}


def test_devices_that_only_changed_places_are_put_back(seed: int) -> None:
    """Hosts of the same devices are exchanged, and devices of the same memory within each."""
    chance = random.Random(seed)
    for _ in range(20):
        problem = problem_of(12, hosts=3)
        before = random_selection(chance, problem)
        hosts = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        targets = [chance.sample(host, 4) for host in chance.sample(hosts, 3)]
        moved = before.on(
            {place: to for own, other in zip(hosts, targets, strict=True) for place, to in zip(own, other, strict=True)}
        )
        assert as_a_set(aligned(problem, moved, before)) == as_a_set(before)


def test_the_same_groups_stand_on_devices_of_the_same_memory(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        problem = problem_of(8, hosts=2, large=3)
        found, before = random_selection(chance, problem), random_selection(chance, problem)
        there = aligned(problem, found, before)
        assert there.held == found.held
        memory = [
            [[problem.devices[place].memory_bytes for place in frame.devices] for frame in each.frames]
            for each in (found, there)
        ]
        assert memory[0] == memory[1]
        used = [place for frame in there.frames for place in frame.devices]
        assert len(set(used)) == len(used)
        for frame in there.frames:
            assert len({problem.devices[place].host for place in frame.devices}) == 1


def test_groups_that_hold_most_of_the_same_stay() -> None:
    problem = problem_of(3, hosts=1)
    frames = tuple(Frame((place,)) for place in range(3))
    before = Selection(frames, (frozenset({0, 4}), frozenset({1, 2}), frozenset({3})))
    found = Selection(frames, (frozenset({3}), frozenset({0, 1}), frozenset({2, 4})))
    # r4 is the largest, so the group with it stays where it is; r3 stands as before; the third gets what is left.
    assert as_a_set(aligned(problem, found, before)) == {
        ((0,), frozenset({2, 4})),
        ((1,), frozenset({0, 1})),
        ((2,), frozenset({3})),
    }

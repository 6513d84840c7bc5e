"""The best of all placements, against a reference that leaves none out, whatever placements are alike."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, permutations, product

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from bench.kit.placing.optimum import optimum
from builder.placement.planner.group import Device
from builder.placement.planner.group_simulator import GroupSimulator, PlacedGroup
from builder.placement.planner.problem import Problem
from builder.placement.planner.search import best_selection
from builder.placement.planner.traffic import Traffic
from placement_cases import devices, model_of, random_problem

Groups = list[tuple[int, ...]]


def in_groups(order: Sequence[int]) -> Iterator[Groups]:
    """Yield all ways to cut a sequence."""
    if not order:
        yield []
    for end in range(1, len(order) + 1):
        for rest in in_groups(order[end:]):
            yield [tuple(order[:end]), *rest]


def fits(problem: Problem, group: Sequence[int], held: Sequence[int]) -> bool:
    if len({problem.devices[place].host for place in group}) > 1 or len(group) not in problem.stage_counts:
        return False
    shape = problem.stage_counts.index(len(group))
    if not all(problem.forms.is_possible[shape, model] for model in held):
        return False
    return all(
        sum(int(problem.forms.stage_bytes[shape, model, stage]) for model in held)
        <= problem.devices[place].memory_bytes
        for stage, place in enumerate(group)
    )


def best_of_all(problem: Problem) -> tuple[int, float, float]:
    """Return the score without the number of replicas: of models that stand somewhere, attainment and latency."""
    models = range(len(problem.models))
    subsets = [*chain.from_iterable(combinations(models, count) for count in range(len(models) + 1))]
    asked = {model for model in models if problem.traffic.counts(len(models))[model]}
    simulator = GroupSimulator(problem.traffic, problem.forms.times)
    best = (-len(models), 0.0, 0.0)
    for order in permutations(range(len(problem.devices))):
        for groups in in_groups(order):
            for choice in product(subsets, repeat=len(groups)):
                if all(fits(problem, group, held) for group, held in zip(groups, choice, strict=True)):
                    placed = [
                        PlacedGroup(len(group), frozenset(held)) for group, held in zip(groups, choice, strict=True)
                    ]
                    played = simulator.play(placed)
                    best = max(best, (-len(asked.difference(*choice)), *played.score))
    return best


def unlike(rng: random.Random, count: int) -> tuple[Device, ...]:
    return tuple(
        Device(f"d{number}", rng.choice([500, 1_000, 1_400]), rng.choice(["alpha", "alpha", "beta"]))
        for number in range(count)
    )


@pytest.mark.parametrize("are_alike", [True, False])
def test_nothing_is_better_than_the_optimum(seed: int, are_alike: bool) -> None:
    for number in range(10):
        rng = random.Random(f"{seed} {number}")
        problem = random_problem(rng, most_devices=3)
        problem = replace(problem, traffic=problem.traffic.kept(problem.traffic.arrived_us < 6_000_000))
        if not are_alike:
            problem = replace(problem, devices=unlike(rng, len(problem.devices)))
        said = f"seed {seed}, case {number}: {problem.devices}, {problem.models}"
        found = optimum(problem).score
        assert found[:3] == best_of_all(problem), said
        assert best_selection(problem).score <= found, said


def test_which_of_two_free_groups_answers_counts() -> None:
    """The first of the free ones answers: the device of both models stands behind that of one, and is kept free."""
    models = (model_of("both", 120_000, 480), model_of("one", 120_000, 480))
    where = (Device("wide", 1_000, "h"), Device("narrow", 500, "h"))
    # Two for `both` at once need two devices; later the device for `one` must not answer what came before.
    moments = [np.array([0, 0, 1_000_000]), np.array([1_010_000])]
    problem = Problem(models, where, Traffic.of_models(moments, [130_000, 130_000]))
    best = optimum(problem)
    assert best.played.attainment == 1.0
    assert [problem.devices[frame.devices[0]].name for frame in best.selection.frames] == ["narrow", "wide"]


def test_more_than_a_few_are_rejected() -> None:
    problem = random_problem(random.Random(1))
    with pytest.raises(InvalidArgumentError, match="3 models and 4 devices at most"):
        optimum(replace(problem, devices=devices(5)))
    many = tuple(model_of(f"r{number}", 12_000, 120) for number in range(4))
    with pytest.raises(InvalidArgumentError, match="3 models and 4 devices at most"):
        optimum(replace(problem, models=many))

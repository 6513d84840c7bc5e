"""Theorem 5.1 against the exact optimum, and the optimum against trying everything."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from backends.scheduling.cost_model import CostModel
from backends.scheduling.deadline_aware import DeadlineAware
from backends.scheduling.policies import policy_of
from backends.scheduling.settings import Capacity, DasSettings, PolicyName, PolicySettings
from bench.kit.small_instances import Instance, StreamedJob, optimum, random_instance

NUM_INSTANCES = 100


def tried(instance: Instance, batch: int = 0, left: frozenset[StreamedJob] | None = None) -> float:
    """The best of all ways to fill this batch and those after it."""
    jobs = frozenset(instance.jobs) if left is None else left
    if batch == instance.num_batches:
        return 0.0
    here = [job for job in jobs if job.may_run(batch)]
    choices = [group for size in range(len(here) + 1) for group in combinations(here, size) if _fits(instance, group)]
    return max(sum(job.worth for job in group) + tried(instance, batch + 1, jobs - set(group)) for group in choices)


def _fits(instance: Instance, group: tuple[StreamedJob, ...]) -> bool:
    limits = instance.capacity
    tokens = sum(job.num_tokens for job in group)
    return len(group) <= limits.max_rows and tokens <= limits.max_tokens and len({job.root for job in group}) <= 1


def test_the_optimum_is_the_best_of_all_ways() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    compared = 0
    while compared < 60:
        instance = random_instance(chance)
        if len(instance.jobs) <= 6 and instance.num_batches <= 3:
            assert optimum(instance) == pytest.approx(tried(instance)), f"seed {seed}: {instance}"
            compared += 1


def test_das_keeps_its_bound() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(NUM_INSTANCES):
        instance = random_instance(chance)
        settings = DasSettings(eta=chance.uniform(0.01, 0.99), q=chance.uniform(0.01, 0.99))
        reached = instance.reached_by(DeadlineAware(settings))
        assert reached >= settings.bound * optimum(instance), f"seed {seed}: {settings} {instance}"


@pytest.mark.parametrize("name", PolicyName)
def test_nobody_reaches_more_than_the_optimum(name: PolicyName) -> None:
    """Compare with the exact optimum: reaching more would break a constraint."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(15):
        instance = random_instance(chance)
        policy = policy_of(PolicySettings(name), lambda _: CostModel(0.5, 0, 0, 0, 0))
        assert instance.reached_by(policy) <= optimum(instance) + 1e-9, f"seed {seed}"


def test_first_come_has_no_such_bound() -> None:
    """What the bound is worth: where the old and long goes first, almost everything is lost."""
    jobs = [StreamedJob("a", 0, 40, 0, 1), *(StreamedJob("a", key, 1, 0, 1) for key in range(1, 40))]
    instance = Instance(jobs, Capacity(max_rows=40, max_tokens=40))
    first_come = instance.reached_by(policy_of(PolicySettings(PolicyName.FCFS)))
    assert first_come == pytest.approx(1 / 40)
    assert instance.reached_by(DeadlineAware()) == pytest.approx(optimum(instance)) == pytest.approx(39)

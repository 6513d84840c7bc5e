"""Every policy against its slow reference, and what all of them promise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import policy_reference as reference
from backends.errors import InvalidArgumentError
from backends.scheduling.cost_model import CostModel
from backends.scheduling.policies import Policy, policy_of
from backends.scheduling.settings import Ageing, Capacity, DasSettings, PolicyName, PolicySettings
from backends.scheduling.waiting_room import WaitingRoom
from policy_reference import Moment, WaitingJob, random_moment

MODELS = {"a": CostModel(100, 1, 2, 0.5, 3), "b": CostModel(10, 0, 20, 0, 0)}
DAS = DasSettings(eta=0.4, q=0.7)
REFERENCES: dict[PolicyName, Callable[[Moment], list[WaitingJob]]] = {
    PolicyName.FCFS: reference.first_come,
    PolicyName.SJF: reference.shortest,
    PolicyName.EDF: reference.earliest,
    PolicyName.LEAST_SLACK: lambda moment: reference.least_slack(moment, MODELS),
    PolicyName.DAS: lambda moment: reference.deadline_aware(moment, DAS.eta, DAS.q),
    PolicyName.SLOTTED_DAS: lambda moment: reference.deadline_aware(moment, DAS.eta, DAS.q, slotted=True),
}
PATIENT = [name for name in PolicyName if name is not PolicyName.FCFS]
all_policies = pytest.mark.parametrize("name", PolicyName)


def policy(name: PolicyName, patience_us: int = 1000) -> Policy:
    return policy_of(PolicySettings(name, DAS, Ageing(patience_us)), MODELS.__getitem__)


def room_of(moment: Moment) -> WaitingRoom[WaitingJob]:
    room = WaitingRoom(moment.queue)
    room.batches_taken = moment.batches_taken
    return room


def chosen_in(moment: Moment, name: PolicyName) -> list[int]:
    return policy(name, moment.patience_us).select(room_of(moment), moment.now_us, moment.capacity)


def fresh_chance() -> tuple[random.Random, str]:
    seed = random.SystemRandom().randrange(1 << 32)
    return random.Random(seed), f"seed {seed}"


@pytest.mark.parametrize("name", PATIENT)
def test_those_within_their_shares_go_first(name: PolicyName) -> None:
    """A batch is as if the others were not there, with some of those in the room that is left."""
    chance, seed = fresh_chance()
    chooser = policy(name, patience_us=10**12)
    for _ in range(200):
        moment = random_moment(chance)
        is_within = [chance.random() < 0.5 for _ in moment.queue]
        mixed: WaitingRoom[WaitingJob] = WaitingRoom()
        for job, within in zip(moment.queue, is_within, strict=True):
            mixed.add([job], within_share=within)
        within_only = [job for job, within in zip(moment.queue, is_within, strict=True) if within]
        first = [within_only[place] for place in chooser.select(WaitingRoom(within_only), 0, moment.capacity)]
        chosen = chooser.select(mixed, 0, moment.capacity)
        assert [moment.queue[place] for place in chosen if is_within[place]] == first, (seed, moment)
        assert all(is_within[place] for place in chosen[: len(first)]), (seed, moment)


@all_policies
def test_a_policy_chooses_what_its_reference_chooses(name: PolicyName) -> None:
    chance, seed = fresh_chance()
    for _ in range(300):
        moment = random_moment(chance)
        jobs = [moment.queue[place] for place in chosen_in(moment, name)]
        assert jobs == REFERENCES[name](moment), (seed, moment)


@all_policies
def test_a_long_queue_is_no_other(name: PolicyName) -> None:
    """Enough jobs for many windows, lengths and keys that hardly ever fit."""
    chance, seed = fresh_chance()
    for _ in range(3):
        queue = [
            WaitingJob("a", chance.randrange(300), chance.choice([1, 40, 41, 100]), chance.choice([None, 3000, 9000]))
            for _ in range(1500)
        ]
        moment = Moment(queue, 2000, Capacity(64, chance.choice([333, 1001]), chance.choice([3, 64])), 1000)
        jobs = [queue[place] for place in chosen_in(moment, name)]
        assert jobs == REFERENCES[name](moment), seed


@all_policies
def test_a_batch_keeps_the_constraints(name: PolicyName) -> None:
    """(10) and (13): each job once or not at all; (11): within the capacity; and of one root."""
    chance, seed = fresh_chance()
    for _ in range(300):
        moment = random_moment(chance)
        chosen = chosen_in(moment, name)
        jobs = [moment.queue[place] for place in chosen]
        assert jobs and len(set(chosen)) == len(chosen), seed
        assert set(chosen) <= set(range(len(moment.queue))), seed
        assert reference.fits(jobs, moment.capacity), (seed, moment)
        assert len({job.root for job in jobs}) == 1, seed


@all_policies
def test_the_same_moment_gives_the_same_batch_and_stays_as_it_is(name: PolicyName) -> None:
    chance, seed = fresh_chance()
    for _ in range(100):
        moment = random_moment(chance)
        room, chooses = room_of(moment), policy(name, moment.patience_us)
        first = chooses.select(room, moment.now_us, moment.capacity)
        assert chooses.select(room, moment.now_us, moment.capacity) == first == chosen_in(moment, name), seed
        assert list(room) == list(moment.queue), seed


@all_policies
def test_a_queue_is_emptied_job_by_job(name: PolicyName) -> None:
    """(12), the half that is a policy's: nobody is run before coming, and nobody stays for ever."""
    chance, seed = fresh_chance()
    for _ in range(30):
        moment = random_moment(chance)
        room, ran = room_of(moment), []
        while len(room):
            ran += room.take_batch(policy(name).select(room, moment.now_us, moment.capacity))
        assert len(ran) == len(moment.queue) and set(ran) == set(moment.queue), seed


@all_policies
def test_nothing_waits(name: PolicyName) -> None:
    assert policy(name).select(WaitingRoom(), 0, Capacity()) == []


@all_policies
def test_a_job_longer_than_any_batch_runs_alone(name: PolicyName) -> None:
    room = WaitingRoom([WaitingJob("a", 1, 500, 99), WaitingJob("a", 2, 500, 98)])
    assert len(policy(name).select(room, 0, Capacity(max_tokens=100))) == 1


def test_first_come_overtakes_nobody() -> None:
    chance, seed = fresh_chance()
    for _ in range(200):
        moment = random_moment(chance)
        of_root = [place for place, job in enumerate(moment.queue) if job.root == moment.queue[0].root]
        chosen = chosen_in(moment, PolicyName.FCFS)
        assert chosen == of_root[: len(chosen)], seed


@pytest.mark.parametrize("name", PATIENT)
def test_who_has_no_deadline_does_not_starve(name: PolicyName) -> None:
    """Before a flood of shorter and more urgent jobs of other roots, each aged job runs within four batches."""
    patience_us, batch_us = 10_000, 1000
    capacity = Capacity(max_rows=8, max_tokens=100, max_adapters=8)
    patient = [WaitingJob(root, 99, 90, None, arrived_us=0) for root in "aab"]
    chooses, room = policy(name, patience_us), WaitingRoom(patient)
    ran_at: dict[WaitingJob, int] = {}
    for number in range(60):
        now_us = number * batch_us
        room.add([WaitingJob("a", key, 5, now_us + batch_us + 500, now_us) for key in range(30)])
        room.take_late(now_us)
        for job in room.take_batch(chooses.select(room, now_us, capacity)):
            ran_at[job] = now_us
    assert [job for job in patient if ran_at[job] > patience_us + 4 * len(patient) * batch_us] == []
    assert min(ran_at[job] for job in patient) >= patience_us  # or there was no flood
    in_time = sum(job.deadline_us is not None for job in ran_at)
    assert in_time > 0.7 * 8 * (60 - len(patient))  # the others keep most of the room


@pytest.mark.parametrize("name", PATIENT)
def test_many_aged_jobs_leave_three_quarters_to_deadlines(name: PolicyName) -> None:
    capacity = Capacity(max_rows=16, max_tokens=200, max_adapters=16)
    room = WaitingRoom([WaitingJob("a", key, 11) for key in range(100)])
    room.add([WaitingJob("a", key, 10, 20_000, 5000) for key in range(100)])
    jobs = [room[place] for place in policy(name, 1000).select(room, 6000, capacity)]
    assert [job.deadline_us for job in jobs] == [None] * 4 + [20_000] * 12


def test_least_slack_sees_what_deadlines_alone_do_not() -> None:
    long, short, lost = WaitingJob("a", 1, 50, 3000), WaitingJob("a", 2, 3, 2900), WaitingJob("a", 3, 50, 1200)
    room, one = WaitingRoom([lost, short, long]), Capacity(max_rows=1)
    assert policy(PolicyName.EDF).select(room, 0, one) == [0]
    assert policy(PolicyName.LEAST_SLACK).select(room, 0, one) == [2]
    assert policy(PolicyName.LEAST_SLACK).select(room, 0, Capacity()) == [2, 1, 0]


def test_slots_leave_out_what_would_make_all_of_them_long() -> None:
    room = WaitingRoom([WaitingJob("a", key, tokens, 9000) for key, tokens in enumerate([10, 10, 10, 10, 60, 70])])
    capacity = Capacity(max_tokens=100)
    assert policy(PolicyName.DAS).select(room, 0, capacity) == [0, 1, 2, 3, 4]
    assert policy(PolicyName.SLOTTED_DAS).select(room, 0, capacity) == [0, 1, 2, 3]


def test_slots_leave_none_out_where_all_jobs_fit_into_the_batch() -> None:
    room = WaitingRoom([WaitingJob("a", key, tokens, 9000) for key, tokens in enumerate([10, 10, 10, 10, 60])])
    capacity = Capacity(max_tokens=100)
    assert policy(PolicyName.SLOTTED_DAS).select(room, 0, capacity) == [0, 1, 2, 3, 4]


def test_a_capacity_without_room_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        Capacity(max_rows=0)


@pytest.mark.parametrize("wrong", [0, 1, -0.5, 1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["eta", "q"])
def test_numbers_that_are_no_shares_are_refused(name: str, wrong: float) -> None:
    settings: dict[str, Any] = {name: wrong}
    with pytest.raises(InvalidArgumentError, match=name):
        DasSettings(**settings)


def test_a_negative_patience_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        Ageing(-1)

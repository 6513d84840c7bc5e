from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from backends.errors import InvalidArgumentError
from backends.scheduling.policy import Capacity, FirstComeFirstServed


@dataclass(frozen=True)
class Waiting:
    root: str
    hplm_key: int
    num_tokens: int
    deadline_us: int | None = None


def test_random_queues_keep_order_root_and_capacity() -> None:
    chance = random.Random(11)
    policy = FirstComeFirstServed()
    for _ in range(500):
        waiting = [
            Waiting(chance.choice("ab"), chance.randrange(6), chance.randint(1, 40))
            for _ in range(chance.randint(1, 30))
        ]
        capacity = Capacity(chance.randint(1, 10), chance.randint(1, 200), chance.randint(1, 4))
        chosen = policy.select(waiting, 0, capacity)
        jobs = [waiting[index] for index in chosen]
        assert chosen[0] == 0
        assert chosen == sorted(set(chosen))
        assert {job.root for job in jobs} == {waiting[0].root}
        assert len(jobs) <= capacity.max_rows
        assert len({job.hplm_key for job in jobs}) <= capacity.max_adapters
        assert len(jobs) == 1 or sum(job.num_tokens for job in jobs) <= capacity.max_tokens
        same_root = [index for index, job in enumerate(waiting) if job.root == waiting[0].root]
        assert chosen == same_root[: len(chosen)]  # nobody of the same root is overtaken


def test_nothing_waits() -> None:
    assert FirstComeFirstServed().select([], 0, Capacity()) == []


def test_a_capacity_without_room_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        Capacity(max_rows=0)

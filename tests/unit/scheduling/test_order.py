"""Who overtakes whom, by the orders' numbers against arrivals that are walked through one by one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from backends.scheduling.order import (
    DeadlineOrder,
    FairOrder,
    KindOrder,
    LengthOrder,
    Order,
    UtilityOrder,
)
from backends.scheduling.settings import Capacity
from backends.scheduling.waiting_room import WaitingRoom

EMPTY = WaitingRoom[Any]()


@dataclass(frozen=True)
class Row:
    num_tokens: int
    deadline_us: int | None
    root: str = "mini"
    hplm_key: int = 1
    arrived_us: int = 0
    depth: float = 1.0
    least_depth: float = 1.0
    most_depth: float = 1.0
    exit_depth: float = 1.0
    kept: float = 1.0


def fresh_chance() -> tuple[random.Random, str]:
    seed = random.SystemRandom().randrange(1 << 32)
    return random.Random(seed), f"seed {seed}"


def random_row(chance: random.Random, now_us: int) -> Row:
    deadline_us = None if chance.random() < 0.1 else now_us + round(1000 * 2 ** chance.uniform(0, 12))
    return Row(chance.randint(1, 512), deadline_us)


def runs_before(order: Order, one: Row, other: Row) -> bool:
    """Whether the one runs strictly before the other."""
    is_ahead, is_behind = order.ahead(WaitingRoom([one]), other, 0.0), order.ahead(WaitingRoom([other]), one, 0.0)
    return bool(is_ahead[0]) and not is_behind[0]


@pytest.mark.parametrize("order", [LengthOrder(), DeadlineOrder()])
def test_arrivals_overtake_for_as_long_as_they_would_stand_in_front(order: KindOrder) -> None:
    """A kind's time is the sum over moments to come; kinds are as coarse as a fifth of a deadline."""
    chance, seed = fresh_chance()
    for _ in range(50):
        now_us, in_us = chance.randrange(1 << 30), 1000.0 * chance.randint(0, 2000)
        job, other = random_row(chance, now_us), random_row(chance, now_us)
        moments = np.linspace(0, in_us, 500, endpoint=False)
        in_front = 0
        for later_us in moments.tolist():
            due_us = None if other.deadline_us is None else other.deadline_us + round(later_us)
            in_front += runs_before(order, Row(other.num_tokens, due_us), job)
        expected_us = in_us * in_front / len(moments)
        found_us = order.overtaking_us(EMPTY, job, Capacity(), now_us, in_us)[order.kind(other, now_us)]
        is_exact = isinstance(order, LengthOrder) or other.deadline_us is None
        coarse_us = 0.0 if is_exact or other.deadline_us is None else 0.2 * (other.deadline_us - now_us)
        assert abs(found_us - expected_us) <= coarse_us + in_us / 250 + 1000, (seed, job, other)


def overtaken_us(order: KindOrder, room: WaitingRoom[Row], capacity: Capacity) -> dict[int, float]:
    """Return for how long arrivals of each length overtake a job of 40 tokens."""
    times_us = order.overtaking_us(room, Row(40, 10**9), capacity, 0, 1000.0)
    return {length: float(times_us[order.kind(Row(length, 10**9), 0)]) for length in range(60)}


def test_rows_of_similar_worth_overtake_one_that_goes_by_its_deadline_in_a_part_of_each_batch_only() -> None:
    room = WaitingRoom([Row(length, 10**9) for length in (10, 11, 40, 50)])
    expected = {length: 1000.0 if length < 10 else 320.0 if length < 40 else 0.0 for length in range(60)}
    assert overtaken_us(UtilityOrder(eta=0.4, q=0.25), room, Capacity()) == pytest.approx(expected)


@pytest.mark.parametrize("capacity", [Capacity(max_rows=4), Capacity(max_tokens=20)])
def test_a_row_that_is_too_long_for_that_is_overtaken_in_the_other_part_too(capacity: Capacity) -> None:
    """Half of those to come are due earlier."""
    room = WaitingRoom([Row(length, 10**9) for length in (9, 5, 40, 4, 40)])
    expected = {length: 1000.0 if length < 10 else 700.0 if length < 40 else 0.0 for length in range(60)}
    assert overtaken_us(UtilityOrder(eta=0.4, q=0.25), room, capacity) == pytest.approx(expected)
    room.take(range(4))
    assert overtaken_us(UtilityOrder(eta=0.4, q=0.25), room, capacity)[39] == pytest.approx(320.0)


def test_in_fair_shares_nobody_overtakes() -> None:
    order = FairOrder()
    room = WaitingRoom[Row]()
    for start_us in (1.0, 2.0, 3.0):
        room.add([Row(5, None)], start_us)
    assert order.ahead(room, Row(5, 10**6), 2.0).tolist() == [True, True, False]


def test_jobs_without_a_deadline_do_not_overtake_each_other() -> None:
    order = DeadlineOrder()
    assert order.overtaking_us(EMPTY, Row(5, None), Capacity(), 0, 1e6)[order.kind(Row(3, None), 0)] == 0.0
    assert order.overtaking_us(EMPTY, Row(5, None), Capacity(), 0, 1e6)[order.kind(Row(3, 1 << 50), 0)] == 1e6


def test_jobs_without_a_deadline_stand_behind_all_deadlines() -> None:
    assert runs_before(DeadlineOrder(), Row(5, 10**12), Row(5, None))
    assert not runs_before(DeadlineOrder(), Row(5, None), Row(5, None))

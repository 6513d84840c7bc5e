"""Who overtakes whom, by the orders' numbers against arrivals that are walked through one by one."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest

from backends.scheduling.allowance import Allowance
from backends.scheduling.backlog import Load
from backends.scheduling.fair_share import ShareSettings
from backends.scheduling.inflow import Inflow
from backends.scheduling.order import DeadlineOrder, FairOrder, LengthOrder, Order, UtilityOrder


@dataclass(frozen=True)
class Row:
    num_tokens: int
    deadline_us: int | None
    root: str = "mini"
    hplm_key: int = 1
    arrived_us: int = 0


def fresh_chance() -> tuple[random.Random, str]:
    seed = random.SystemRandom().randrange(1 << 32)
    return random.Random(seed), f"seed {seed}"


def random_row(chance: random.Random, now_us: int) -> Row:
    deadline_us = None if chance.random() < 0.1 else now_us + round(1000 * 2 ** chance.uniform(0, 12))
    return Row(chance.randint(1, 512), deadline_us)


@pytest.mark.parametrize("order", [LengthOrder(), DeadlineOrder()])
def test_arrivals_overtake_for_as_long_as_they_would_stand_in_front(order: Order) -> None:
    """A kind's time is the sum over moments to come; kinds are as coarse as a fifth of a deadline."""
    chance, seed = fresh_chance()
    for _ in range(50):
        now_us, in_us = chance.randrange(1 << 30), 1000.0 * chance.randint(0, 2000)
        job, other = random_row(chance, now_us), random_row(chance, now_us)
        moments = np.linspace(0, in_us, 2000, endpoint=False)
        in_front = 0
        for later_us in moments.tolist():
            due_us = None if other.deadline_us is None else other.deadline_us + round(later_us)
            in_front += order.place(Row(other.num_tokens, due_us), 0.0) < order.place(job, 0.0)
        expected_us = in_us * in_front / len(moments)
        found_us = order.overtaking_us(job, now_us, in_us)[order.kind(other, now_us)]
        is_exact = isinstance(order, LengthOrder) or other.deadline_us is None
        coarse_us = 0.0 if is_exact or other.deadline_us is None else 0.2 * (other.deadline_us - now_us)
        assert abs(found_us - expected_us) <= coarse_us + in_us / 1000 + 1000, (seed, job, other)


def test_rows_of_similar_worth_overtake_each_other_in_a_part_of_each_batch_only() -> None:
    """By length in the share eta, and in the rest where they are due earlier, as half of those to come are."""
    order, job = UtilityOrder(eta=0.4, q=0.25), Row(40, 10**9)
    taken_us = {length: order.overtaking_us(job, 0, 1000.0)[order.kind(Row(length, 10**9), 0)] for length in range(60)}
    assert taken_us == {length: 1000.0 if length < 10 else 700.0 if length < 40 else 0.0 for length in range(60)}
    assert order.place(job, 5.0) == LengthOrder().place(job, 5.0)


def test_in_fair_shares_nobody_overtakes() -> None:
    order = FairOrder()
    assert not order.overtaking_us(Row(5, 10**6), 0, 1e6).any()
    assert order.place(Row(5, 10**6), 77.0) == 77.0


def test_jobs_without_a_deadline_do_not_overtake_each_other() -> None:
    order = DeadlineOrder()
    assert order.overtaking_us(Row(5, None), 0, 1e6)[order.kind(Row(3, None), 0)] == 0.0
    assert order.overtaking_us(Row(5, None), 0, 1e6)[order.kind(Row(3, 1 << 50), 0)] == 1e6


def test_jobs_without_a_deadline_stand_behind_all_deadlines() -> None:
    assert DeadlineOrder().place(Row(5, None), 0.0) == math.inf


def test_a_steady_inflow_is_known_soon_and_after_a_pause_anew() -> None:
    inflow = Inflow(3)
    inflow.begin(10_000_000)
    for number in range(401):
        now_us = 10_000_000 + 1000 * number
        inflow.add(number % 2, Load(1.0, 20.0, 500.0), now_us)
        if number > 200:
            assert inflow.rate(now_us) == pytest.approx(0.5, rel=0.05)
    during = inflow.during(np.array([1e6, 0.0, 1e6]), now_us)
    assert during.rows == pytest.approx(500, rel=0.05)
    assert during.tokens == pytest.approx(10_000, rel=0.05)
    assert inflow.all_during(1e6, now_us).rows == pytest.approx(1000, rel=0.05)
    inflow.begin(now_us)
    assert inflow.rate(now_us) == 0.0


def test_whoever_asks_for_its_share_is_within_it_and_a_flood_is_not() -> None:
    allowance = Allowance(ShareSettings({"heavy": 3.0}, burst_us=10_000))
    within = {"modest": 0, "heavy": 0, "flood": 0}
    for now_us in range(0, 10_000_000, 1000):
        for tenant, cost_us in (("modest", 150.0), ("heavy", 500.0), ("flood", 2000.0)):
            if allowance.allows(tenant, now_us):
                allowance.use(tenant, cost_us)
                within[tenant] += 1
    assert within["modest"] == within["heavy"] == 10_000
    # A fifth of the time and a bit, and the burst.
    assert within["flood"] * 2000.0 == pytest.approx(1.25 * 10_000_000 / 5 + 10_000, rel=0.02)


def test_chance_takes_nobody_beyond_a_share_however_few_rows_it_is(seed: int) -> None:
    """Rows of a few to a hundred tokens, of which a twenty-first of the device computes six a second."""
    chance = np.random.default_rng(seed)
    allowance = Allowance(ShareSettings())
    tenants = [f"t{number}" for number in range(20)]
    rate_per_s, row_us = 6.0, 1e6 / 21 / 6.0
    at_us = np.sort(chance.uniform(0, 60e6, size=round(20 * rate_per_s * 60))).astype(int).tolist()
    costs_us = row_us * np.clip(chance.normal(20, 20, len(at_us)), 3, 100) / 23.5
    within = beyond = 0
    for now_us, cost_us, tenant in zip(at_us, costs_us.tolist(), chance.choice(tenants, len(at_us)), strict=True):
        for _ in range(3):
            if allowance.allows("flood", now_us):
                allowance.use("flood", cost_us)
        if allowance.allows(tenant, now_us):
            allowance.use(tenant, cost_us)
            within += 1
        else:
            beyond += 1
    assert beyond <= 0.01 * within, f"seed {seed}: {beyond} rows of {within + beyond}"
    # The last gap between two arrivals may have let the flood back in for a row or two.
    while allowance.allows("flood", at_us[-1]):
        allowance.use("flood", row_us)
    assert "flood" in allowance.most_beyond(at_us[-1], 8), f"seed {seed}"


def test_whoever_pauses_after_a_burst_still_owes_what_it_has_used() -> None:
    """Bursts of what chance allows, each after a second of silence, beside twenty tenants that keep to their shares."""
    allowance = Allowance(ShareSettings(burst_us=0))
    row_us, used_us = 6_000.0, 0.0
    for now_us in range(0, 60_000_000, 10_000):
        for number in range(20):
            if now_us // 10_000 % 20 == number and allowance.allows(f"t{number}", now_us):
                allowance.use(f"t{number}", row_us)
        if now_us % 1_010_000 == 0:
            for _ in range(33):
                if allowance.allows("pulsing", now_us):
                    allowance.use("pulsing", row_us)
                    used_us += row_us
    # The first burst, and from then on a share of a twenty-first and a bit.
    assert used_us <= 33 * row_us + 1.3 * 60_000_000 / 20


def test_rows_that_are_dropped_while_their_tenant_is_silent_are_not_owed() -> None:
    allowance = Allowance(ShareSettings(burst_us=10_000))
    for tenant in ("gone", "other"):
        assert allowance.allows(tenant, 0)
    allowance.use("gone", 5_000_000.0)
    assert allowance.allows("other", 2_000_000)
    allowance.use("gone", -5_000_000.0)
    assert allowance.allows("gone", 2_000_001)


def test_a_small_weight_makes_a_small_burst() -> None:
    allowance = Allowance(ShareSettings({"small": 0.1}, burst_us=0))
    for _ in range(500):  # so that it is known what a row costs
        allowance.allows("before", 0)
        allowance.use("before", 6_000.0)
    within = {"small": 0, "other": 0}
    for _ in range(100):
        for tenant in within:
            if allowance.allows(tenant, 1_000):
                allowance.use(tenant, 6_000.0)
                within[tenant] += 1
    assert within["small"] <= 5 < 30 <= within["other"]


def test_a_tenant_alone_has_no_share_to_exceed() -> None:
    allowance = Allowance(ShareSettings(burst_us=10_000))
    for now_us in range(0, 1_000_000, 1000):
        assert allowance.allows("alone", now_us)
        allowance.use("alone", 5000.0)
    assert allowance.allows("other", 1_000_000)
    assert not allowance.allows("alone", 1_000_001), "now there is somebody"
    assert allowance.allows("alone", 3_000_000), "who is gone after a while"


def test_a_tenant_alone_has_none_whatever_the_weights_of_those_before_it(seed: int) -> None:
    chance = random.Random(seed)
    weights = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.7}
    allowance = Allowance(ShareSettings(weights, burst_us=10_000))
    for now_us in range(0, 20_000_000, 100_000):
        allowance.allows(chance.choice(list(weights)), now_us)
    alone = chance.choice(list(weights))
    for now_us in range(30_000_000, 31_000_000, 1000):
        assert allowance.allows(alone, now_us), f"seed {seed}"
        allowance.use(alone, 5000.0)
    assert not allowance.most_beyond(31_000_000, 8)


def test_who_is_gone_is_forgotten() -> None:
    allowance = Allowance(ShareSettings())
    for number in range(5000):
        allowance.allows(f"t{number}", 1000 * number)
    assert len(allowance._used_us) == len(allowance._asked_us) <= 1001
    assert allowance._weights == pytest.approx(len(allowance._used_us))

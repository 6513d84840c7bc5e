"""What the processes in front are told: hardly ever more than what a row that is let in takes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from admitted_rows import CAPACITY, MODEL, Row, admission_of
from backends.scheduling.admission import Admission
from backends.scheduling.admission_settings import AdmissionSettings
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.live_costs import LiveCosts
from backends.scheduling.order import DeadlineOrder, FairOrder, LengthOrder, Order, UtilityOrder
from backends.scheduling.outlook import TOLD_LENGTHS, TOLD_TENANTS, least_finish_in_us, outlook_of


@pytest.mark.parametrize("order", [LengthOrder(), UtilityOrder(0.5, 0.5), DeadlineOrder(), FairOrder()])
def test_whoever_is_let_in_takes_no_less_than_is_told_of_its_length(order: Order) -> None:
    """So hardly anybody is refused in front of the engine whom it would let in, and then it was mostly a near thing."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    admission, let_in, spare_us = admission_of(order=order), 0, list[float]()
    now_us, waiting, longest_us = 0, list[Row](), 0.0
    for number in range(3_000):
        now_us += chance.randrange(600)
        job = Row(f"new{number}", chance.randint(1, 120), now_us, now_us + round(1000 * 2 ** chance.uniform(2, 9)))
        least_us = least_finish_in_us(admission, job.num_tokens, now_us)
        if number % 50 == 0:
            told_us = outlook_of(admission, now_us).finish_in_us
            assert list(told_us) == sorted(told_us), f"seed {seed}"
        if admission.admit([job], now_us) is None:
            waiting.append(job)
            let_in += 1
            spare_us.append(job.deadline_us - now_us - least_us)
        if number % 16 == 15 and waiting:
            admission.finished(now_us)
            batch, waiting = waiting[:16], waiting[16:]
            admission.take(batch, now_us)
            admission.began("mini", BatchShape.of(batch), now_us)
            longest_us = max(longest_us, admission.left_us(now_us))
    assert let_in > 300
    by_more_than_a_batch = sum(one < -longest_us for one in spare_us)
    assert sum(one < 0 for one in spare_us) <= 0.02 * let_in and by_more_than_a_batch <= 0.005 * let_in, f"seed {seed}"


@pytest.mark.parametrize("order", [LengthOrder(), UtilityOrder(0.5, 0.5), DeadlineOrder(), FairOrder()])
def test_a_tenant_that_floods_is_told_of_by_name_and_hardly_ever_kept_out_wrongly(order: Order) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    admission, waiting, spare_us = admission_of(order=order), list[Row](), list[float]()
    now_us, named, let_in = 0, Counter[str](), Counter[str]()
    admission.serves("mini")
    for number in range(2_000):
        now_us += chance.randrange(400)
        tenant = "flood" if number % 2 else f"t{number // 2 % 20}"
        job = Row(tenant, chance.randint(1, 60), now_us, now_us + round(1000 * 2 ** chance.uniform(4, 10)))
        tenants_in_us = outlook_of(admission, now_us).tenants_in_us
        assert len(tenants_in_us) <= TOLD_TENANTS
        named[tenant] += tenant in tenants_in_us
        if admission.admit([job], now_us) is None:
            waiting.append(job)
            let_in[tenant] += 1
            spare_us.append(job.deadline_us - now_us - tenants_in_us.get(tenant, 0.0))
        if number % 32 == 31 and waiting:
            admission.finished(now_us)
            batch, waiting = waiting[:16], waiting[16:]
            admission.take(batch, now_us)
            admission.began("mini", BatchShape.of(batch), now_us)
    others = let_in.total() - let_in["flood"]
    assert named["flood"] > 700 and let_in["flood"] > 30 and others > 300, f"seed {seed}"
    assert named.total() - named["flood"] < 200, f"seed {seed}: {named}"
    assert sum(one < 0 for one in spare_us) <= 0.02 * let_in.total(), f"seed {seed}"


def test_who_asks_alone_is_never_told_of_as_beyond_its_share() -> None:
    admission = admission_of(order=LengthOrder())
    for number in range(200):
        assert admission.admit([Row("alone", 60, number)], number) is None
        assert not admission.beyond_share(number, TOLD_TENANTS)
    admission.admit([Row("other", 5, 200)], 200)
    assert admission.beyond_share(200, TOLD_TENANTS) == ["alone"]


def test_nobody_is_told_what_only_the_slower_root_takes() -> None:
    costs = {"mini": LiveCosts(MODEL), "large": LiveCosts(CostModel(60_000.0, 200.0, 500.0, 0.0, 30.0))}
    admission = Admission(lambda root: costs[root], CAPACITY, AdmissionSettings(), FairOrder())
    alone = admission_of()
    for root in ("mini", "large"):
        admission.serves(root)
    row = Row("a", 10, 0, root="large")  # the other one has never run
    assert admission.admit([row], 0) is None
    admission.take([row], 0)
    admission.began("large", BatchShape.of([row]), 0)
    admission.finished(100_000)
    assert 0 < least_finish_in_us(admission, 10, 200_000) <= 1.5 * least_finish_in_us(alone, 10, 200_000)


def test_where_nobody_is_refused_for_being_late_nothing_on_the_way_keeps_anybody_out() -> None:
    admission = admission_of(settings=AdmissionSettings(predicts=False))
    assert not any(outlook_of(admission, 0, on_the_way_us=500_000).finish_in_us)


def test_without_details_nobody_is_promised_less_than_with_them() -> None:
    admission = admission_of(order=LengthOrder())
    for number in range(60):
        tenant = "flood" if number % 4 else "other"
        assert admission.admit([Row(tenant, 100 if number % 2 else 4, number)], number) is None
    whole, rough = (outlook_of(admission, 100, 7_000, in_detail) for in_detail in (True, False))
    assert whole.tenants_in_us and not rough.tenants_in_us
    assert rough.finish_in_us == [7_000 + least_finish_in_us(admission, 1, 100)] * len(TOLD_LENGTHS)
    assert whole.finish_in_us[-1] > 1.5 * rough.finish_in_us[-1]

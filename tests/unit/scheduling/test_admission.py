"""Admission alone: which rows it takes, in which order they would run, and what it tells of those it rejects."""

from __future__ import annotations

import math
import random
import re

import pytest

from admitted_rows import CAPACITY, MINI, MODEL, Row, admission_of, indices_of, run
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.order import DeadlineOrder, FairOrder, LengthOrder, Order, SlottedOrder, UtilityOrder
from backends.scheduling.rejection import Rejection
from backends.scheduling.settings import AdmissionSettings, ShareSettings
from backends.scheduling.tenants import NO_TENANT
from backends.stack_key import StackKey


@pytest.mark.parametrize("order", [LengthOrder(), FairOrder()])
@pytest.mark.parametrize("left_us", [1, 5_000, 50_000])
def test_who_has_less_left_than_two_batches_is_overtaken_by_nobody(order: Order, left_us: int) -> None:
    """And not helped by those who come: with a flood of short rows, times before now once made up for what waits."""
    admission = admission_of(order=order)
    big = [Row("one", 60, 0, hplm_key=key) for key in range(16)]
    assert admission.admit(big, 0) is None
    run(admission, big, 0)
    for now_us in range(1, 2_000):
        assert admission.admit([Row("two", 2, now_us)], now_us) is None
    job, patient = Row("two", 30, 0, 2_000 + left_us), Row("two", 30, 0)
    assert admission.finish_in_us(job, 2_000) >= admission.finish_in_us(patient, 2_000) > MODEL.row_us(30)


def test_a_row_that_is_sure_of_room_in_the_next_batch_is_overtaken_by_none_later() -> None:
    finish_in_us = {}
    for order in (UtilityOrder(0.5, 0.5), LengthOrder(), SlottedOrder(0.5)):
        if isinstance(order, SlottedOrder):
            order.sure_part = 0.01
        admission = admission_of(order=order)
        for now_us in range(0, 400_000, 500):
            short = [Row("one", 10, now_us, now_us + 1_000_000)]
            assert admission.admit(short, now_us) is None
            run(admission, short, now_us)
        job = Row("two", 15, 400_000, 1_400_000)
        finish_in_us[type(order)] = admission.finish_in_us(job, 400_000)
    alone_us = admission_of().finish_in_us(Row("two", 15, 0, 1_000_000), 0)
    assert max(finish_in_us[UtilityOrder], finish_in_us[LengthOrder]) <= 4 * alone_us
    assert finish_in_us[SlottedOrder] >= 40 * alone_us


@pytest.mark.parametrize("order", [DeadlineOrder(), UtilityOrder(0.5, 0.5)])
def test_the_watchdogs_canary_takes_no_share_of_a_tenant_that_is_alone(order: Order) -> None:
    """It asks every second, and is charged nothing."""
    admission = admission_of(settings=AdmissionSettings(max_waiting=10_000, tenant_quota=10_000), order=order)
    for now_us in range(0, 3_000_000, 1_000):
        if now_us % 1_000_000 == 0:
            assert admission.admit([Row(NO_TENANT, 3, now_us)], now_us) is None
        rows = [Row("alone", 60, now_us)]
        assert admission.admit(rows, now_us) is None
        assert admission.waiting.within_share.all(), now_us
        run(admission, list(admission.waiting), now_us)
    assert admission.beyond_share(3_000_000, 8) == []


@pytest.mark.parametrize("order", [DeadlineOrder(), FairOrder()])
def test_rows_that_wait_count_with_what_batches_take_now(order: Order) -> None:
    """Not with what they took when the rows came: a long queue would be taken for as short as it was then."""
    costs, alike = LiveCosts(MODEL), BatchShape(16, 320, 6_400, 1)
    admission = admission_of(costs, order=order)
    last = Row("one", 20, 0)  # overtaken by nothing that is yet to arrive
    for _ in range(40):
        costs.observe(alike, MODEL.predict_us(alike))
    assert admission.admit([Row("one", 20, 0, 9_000_000) for _ in range(300)], 0) is None
    before_us = admission.finish_in_us(last, 0)
    for _ in range(40):
        costs.observe(alike, 1.5 * MODEL.predict_us(alike))
    assert admission.finish_in_us(last, 0) >= 1.45 * before_us


def test_a_request_is_admitted_whole_or_not_at_all_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = admission_of()
    rows = [Row("one", 5, 0), Row("one", 6, 0), Row("one", 7, 0)]
    rejection = Admission._rejection

    def fail_at_the_last(self: Admission[Row], job: Row, *details: object) -> object:
        if job is rows[-1]:
            raise ZeroDivisionError("a defect")
        return rejection(self, job, *details)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Admission, "_rejection", fail_at_the_last)
        with pytest.raises(ZeroDivisionError):
            admission.admit(rows, 0)
    assert not admission.waiting
    assert admission.admit(rows, 0) is None


@pytest.mark.parametrize("predicts", [True, False])
def test_a_row_that_the_next_batch_would_answer_late_is_infeasible(predicts: bool) -> None:
    admission = admission_of(settings=AdmissionSettings(predicts=predicts))
    first = [Row("one", 30, 0), Row("two", 10, 0)]
    running_us = MODEL.predict_us(BatchShape.of(first))
    rows = [Row("one", 20, 0), Row("one", 20, 0, 10**9), Row("two", 1, 0, 10**8), Row("two", 1, 0, 10**7)]
    assert admission.admit([*first, *rows], 0) is None
    assert admission.infeasible(range(6), 0) == [], "an idle engine runs whatever waits"
    run(admission, first, 1_000)
    done_us = 1_000 + running_us + MODEL.predict_us(BatchShape.of(rows))
    for row, deadline_us in zip(rows, (None, 1_500, int(done_us) - 10, int(done_us) + 10), strict=True):
        row.deadline_us = deadline_us
    admission.put_back(admission.take_batch(range(4), 1_000), 1_000)
    assert admission.infeasible(range(4), 1_400) == ([1, 2] if predicts else [])
    admission.batches.finished(2_000)
    assert admission.infeasible(range(4), 2_000) == []


def test_a_wrong_model_is_found_out_also_beside_another_stack_that_runs() -> None:
    """Nothing of the one that predicts too much would run otherwise."""
    slow, other = LiveCosts(CostModel(1e6, 0.0, 0.0, 0.0, 0.0)), StackKey("other")
    good = LiveCosts(MODEL)
    admission: Admission[Row] = Admission(
        lambda key: slow if key == MINI else good, CAPACITY, AdmissionSettings(), FairOrder()
    )
    for stack in (MINI, other):
        admission.serves(stack)
    run(admission, admitted(admission, Row("one", 20, 0)), 0)
    admission.batches.finished(5_000)
    found = []
    for now_us in range(100_000, 3_000_000, 100_000):
        run(admission, admitted(admission, Row("two", 20, now_us, root=other)), now_us)
        admission.batches.finished(now_us + 5_000)
        row = Row("one", 20, now_us + 50_000, now_us + 90_000)
        found.append(admission.admit([row], now_us + 50_000) is None)
        if found[-1]:
            run(admission, [row], now_us + 50_000)
            admission.batches.finished(now_us + 55_000)
    assert not found[0] and any(found), "it is tried once a second"


def admitted(admission: Admission[Row], row: Row) -> list[Row]:
    assert admission.admit([row], row.arrived_us) is None
    return [row]


def test_a_request_of_many_rows_finds_a_wrong_model_out_too() -> None:
    admission = admission_of(LiveCosts(MODEL.scaled(100.0)))
    rows = [Row("acme", 20, 0, 100_000) for _ in range(16)]
    assert admission.admit(rows, 0) is None
    assert admission.admit([Row("acme", 20, 0, 100_000)], 0) is not None


def test_a_rejection_says_what_was_predicted() -> None:
    admission = admission_of(settings=AdmissionSettings(margin_percent=0))
    batch = [Row("acme", 20, 0) for _ in range(16)]
    assert admission.admit(batch, 0) is None
    run(admission, batch, 0)
    rejection = admission.admit([Row("acme", 20, 0, deadline_us=5_000)], 0)
    assert rejection is not None
    assert rejection.reason is Rejection.PREDICTED_LATE
    predicted_us = MODEL.predict_us(BatchShape.of(batch)) + MODEL.predict_us(BatchShape(1, 20, 0, 1))
    told = re.search(r"predicted to be answered in (\d+) ms", str(rejection))
    assert told is not None and 0 <= 1000 * int(told[1]) - predicted_us <= 1000
    assert "the deadline is in 5 ms" in str(rejection)
    assert not admission.waiting


def test_whoever_is_late_when_it_comes_has_not_waited() -> None:
    admission = admission_of()
    batch = [Row("acme", 20, 0) for _ in range(16)]
    assert admission.admit(batch, 0) is None
    rejection = admission.admit([Row("acme", 20, 0, deadline_us=5_000)], 5_000)
    assert rejection is not None and rejection.reason is Rejection.LATE_ON_ARRIVAL
    assert "on the way" in str(rejection)


def test_what_is_put_back_is_charged_once() -> None:
    admission, row = admission_of(order=LengthOrder()), Row("acme", 20, 0)
    assert admission.admit([row, Row("globex", 20, 0)], 0) is None
    charged_us = admission.accounts.shares._ends_us.get("acme", 0.0)
    admission.put_back(admission.take_batch(indices_of(admission, [row]), 0), 0)
    assert charged_us > 0
    assert admission.accounts.shares._ends_us.get("acme", 0.0) == pytest.approx(charged_us)
    admission.drop(indices_of(admission, [row]))
    assert admission.accounts.shares._ends_us.get("acme", 0.0) == pytest.approx(0.0)


def test_a_request_waits_with_all_its_rows_or_with_none() -> None:
    admission = admission_of(settings=AdmissionSettings(max_waiting=10, tenant_quota=4))
    rejection = admission.admit([Row("acme", 20, 0) for _ in range(5)], 0)
    assert rejection is not None and rejection.reason is Rejection.TENANT_QUOTA
    assert not admission.waiting
    assert admission.admit([Row("acme", 20, 0) for _ in range(4)], 0) is None
    assert admission.admit([Row("globex", 20, 0) for _ in range(4)], 0) is None
    rejection = admission.admit([Row("initech", 20, 0) for _ in range(3)], 0)
    assert rejection is not None and rejection.reason is Rejection.QUEUE_FULL


def test_in_a_crowded_queue_nobody_holds_more_than_its_share() -> None:
    admission = admission_of(settings=AdmissionSettings(max_waiting=100, tenant_quota=100))
    for _ in range(60):
        assert admission.admit([Row("acme", 20, 0)], 0) is None
    assert admission.admit([Row("globex", 20, 0)], 0) is None
    rejection = admission.admit([Row("acme", 20, 0)], 0)
    assert rejection is not None and rejection.reason is Rejection.TENANT_SHARE
    assert admission.admit([Row("globex", 20, 0)], 0) is None


@pytest.mark.parametrize("order", [FairOrder(), LengthOrder(), DeadlineOrder()])
def test_work_ahead_is_that_of_the_rows_which_run_before_through_all_ways_in_and_out(order: Order, seed: int) -> None:
    """The sums over columns against sums over rows, one by one."""
    rng = random.Random(seed)
    admission, waiting, taken, now = admission_of(order=order), list[Row](), list[Row](), 0
    for _ in range(1000):
        now += rng.randrange(3000)
        match rng.randrange(5):
            case 0 | 1:
                rows = [random_row(rng, now) for _ in range(rng.randint(1, 5))]
                if admission.admit(rows, now) is None:
                    waiting += rows
            case 2:
                chosen = random_indices(rng, admission)
                taken = admission.take_batch(chosen, now) if chosen else []
            case 3:
                back = taken[: len(taken) // 2]
                admission.put_back(back, now)
                waiting, taken = back + waiting, []
            case 4:
                taken = []
                gone = admission.drop(random_indices(rng, admission))
                waiting = [row for row in waiting if row not in gone]
        waiting = [row for row in waiting if row not in taken]
        assert {id(row) for row in waiting} == {id(row) for row in admission.waiting}
        job = random_row(rng, now)
        for within_share in (True, False):
            start_us = admission.accounts.shares.start_us(job.tenant)
            ahead = admission._is_ahead(job, start_us, within_share)
            found = admission._load_of(ahead, admission.waiting.depth)
            ahead = rows_ahead(admission, job, order, within_share)
            assert found.rows == len(ahead)
            assert found.tokens == sum(row.num_tokens for row in ahead)
            assert found.work_us == pytest.approx(sum(MODEL.row_us(row.num_tokens) for row in ahead))
    admission.drop(range(len(admission.waiting)))
    assert not admission.accounts._charges and not admission.fill._adapters and not admission.accounts.shares._rows


def random_row(rng: random.Random, now_us: int) -> Row:
    deadline_us = None if rng.random() < 0.3 else now_us + round(1000 * 2 ** rng.uniform(6, 12))
    return Row(f"t{rng.randrange(6)}", rng.randint(3, 60), now_us, deadline_us, hplm_key=rng.randrange(9))


def random_indices(rng: random.Random, admission: Admission[Row]) -> list[int]:
    count = len(admission.waiting)
    return rng.sample(range(count), rng.randint(min(1, count), min(8, count))) if count else []


def rows_ahead(admission: Admission[Row], job: Row, order: Order, within_share: bool) -> list[Row]:
    room = admission.waiting
    ahead = []
    for index, row in enumerate(room):
        match order:
            case FairOrder():
                if room.start_us[index] <= admission.accounts.shares.start_us(job.tenant):
                    ahead.append(row)
                continue
            case LengthOrder():
                is_before = row.num_tokens <= job.num_tokens
            case _:
                due_us, other_us = job.deadline_us or math.inf, row.deadline_us or math.inf
                is_before = other_us <= due_us
        is_within = bool(room.within_share[index])
        if (is_before and is_within) if within_share else (is_before or is_within):
            ahead.append(row)
    return ahead


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_waiting": "0"},
        {"max_waiting": "many"},
        {"tenant_quota": "0"},
        {"margin_percent": "900"},
        {"admission": "maybe"},
        {"burst_ms": "-1"},
        {"tenant_weights": "acme=3"},
    ],
)
def test_settings_that_cannot_be_are_rejected(wrong: dict[str, str], tmp_path: object) -> None:
    with pytest.raises(InvalidArgumentError):
        AdmissionSettings.from_model(ModelSettings(Home(tmp_path), wrong))  # type: ignore[arg-type]


def test_settings_travel_through_a_models_configuration(tmp_path: object) -> None:
    shares = ShareSettings(burst_us=20_000)
    for settings in (AdmissionSettings(), AdmissionSettings(500, 20, False, 25, shares)):
        assert AdmissionSettings.from_model(ModelSettings(Home(tmp_path), settings.parameters)) == settings  # type: ignore[arg-type]


def test_rows_of_several_stacks_need_a_batch_each() -> None:
    stacks = [StackKey(f"root{number}") for number in range(8)]
    admission = admission_of()
    for number, stack in enumerate(stacks):
        alone_us = admission.finish_in_us(Row("acme", 20, 0, root=stack), 0)
        assert alone_us >= 1.25 * (number + 1) * MODEL.constant_us
        assert admission.admit([Row("acme", 20, 0, root=stack)], 0) is None
    of_one_us = admission.finish_in_us(Row("acme", 20, 0, root=stacks[0]), 0)
    assert of_one_us >= 1.25 * 8 * MODEL.constant_us


def test_a_policy_that_fills_batches_again_is_believed_again() -> None:
    admission = admission_of()
    for size, fullness in ((4, 0.25), (16, 1.0)):
        for _ in range(100):
            rows = [Row("acme", 20, 0) for _ in range(size)]
            extra = [Row("acme", 20, 0) for _ in range(14 if size == 4 else 0)]
            assert admission.admit([*rows, *extra], 0) is None
            admission.take_batch(range(size), 0)
            admission.drop(range(len(admission.waiting)))
        assert admission.fill._fullness == pytest.approx(fullness, abs=0.02)


def test_a_row_that_is_put_back_has_its_tenants_share_of_now_and_gets_back_what_it_paid() -> None:
    admission = admission_of(settings=AdmissionSettings(shares=ShareSettings(burst_us=0)), order=LengthOrder())
    assert admission.admit([Row("other", 20, 0)], 0) is None
    for _ in range(60):
        assert admission.admit([Row("overload", 60, 0)], 0) is None
    used_us = admission.accounts.buckets._used_us["overload"]
    beyond = [index for index, within in enumerate(admission.waiting.within_share.tolist()) if not within]
    assert beyond
    admission.put_back(admission.take_batch(beyond[:1], 0), 0)
    assert not admission.waiting.within_share[0]
    admission.drop([0])
    assert admission.accounts.buckets._used_us["overload"] == used_us


def test_far_deadlines_are_not_judged_by_what_arrived_in_a_moment() -> None:
    admission = admission_of(order=LengthOrder())
    for number in range(400):
        assert admission.admit([Row(f"t{number % 40}", 10, 200 * number)], 200 * number) is None
    assert admission.admit([Row("acme", 40, 80_000, 80_000 + 60_000_000)], 80_000) is None


def test_a_row_waits_for_the_other_stages_too() -> None:
    """Batches follow one another as soon as the first stage is free, but each is answered behind the last one."""
    rows = [Row("one", 20, 0, hplm_key=key) for key in range(40)]
    one_stage, three_stages = admission_of(LiveCosts(MODEL)), admission_of(LiveCosts(MODEL, tail=2.0))
    for number, row in enumerate(rows):
        finish_in_us = one_stage.finish_in_us(row, 0)
        batches = max(1.0, (number + 1) / 16)
        assert three_stages.finish_in_us(row, 0) == pytest.approx(finish_in_us * (1 + 2 / batches))
        assert one_stage.admit([row], 0) is None
        assert three_stages.admit([row], 0) is None


def test_a_batch_that_would_be_late_in_the_last_stage_is_infeasible() -> None:
    for tail, expected in ((0.0, []), (3.0, [0])):
        costs = LiveCosts(MODEL, tail)
        admission = admission_of(costs)
        shape = BatchShape(1, 20, 400, 1)
        deadline_us = int(3 * costs.predict_us(shape))
        running, row = Row("one", 20, 0), Row("one", 20, 0, deadline_us)
        assert admission.admit([running], 0) is None
        run(admission, [running], 0)
        admission.waiting.add([row], 0.0, True)
        assert admission.infeasible([0], 0) == expected, f"tail {tail}"

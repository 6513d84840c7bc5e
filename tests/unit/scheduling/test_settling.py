"""Under load, rows settle for the answer of an earlier layer before any is rejected."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from admitted_rows import CAPACITY, MINI, Row, admission_of, indices_of, run
from backends.engine.job import Job
from backends.registry.entries import DomainEntry, HplmEntry
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.order import DeadlineOrder, FairOrder, LengthOrder, Order
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.scheduling.settling import Supposed
from backends.scheduling.wait_forecast import WaitForecast

MODEL = CostModel(1000.0, 0.0, 10.0, 0.0, 0.0)
LEAST = 1 / 3


def row(deadline_us: int | None, least_depth: float = LEAST, tenant: str = "acme", arrived_us: int = 0) -> Row:
    return Row(tenant, 100, arrived_us, deadline_us, least_depth=least_depth)


def admission_without_margin() -> Admission[Row]:
    return admission_of(LiveCosts(MODEL), AdmissionSettings(margin_percent=0))


def busy() -> Admission[Row]:
    """An admission whose engine runs a batch for another 2 ms."""
    admission = admission_without_margin()
    running = row(None, 1.0)
    assert admission.admit([running], 0) is None
    run(admission, [running], 0)
    return admission


def test_a_row_settles_only_where_its_deadline_takes_it() -> None:
    admission = busy()
    in_time, settled, late = row(4_000), row(4_700), row(3_300)
    assert admission.admit([in_time], 0) is None
    assert not in_time.settles
    # Behind a row of 1,000 us, after batches of 2,000 and 1,000 us: at 5,000 us, or at 4,333 us.
    assert admission.admit([settled], 0) is None
    assert (settled.settles, settled.depth) == (True, LEAST)
    rejection = admission.admit([late], 0)
    assert rejection is not None
    assert rejection.reason == "predicted_late"


def test_a_row_without_an_earlier_answer_is_rejected() -> None:
    admission = busy()
    assert admission.admit([row(3_900, 1.0)], 0) is not None
    assert admission.admit([row(3_900)], 0) is None


def test_a_settled_row_delays_others_by_the_layers_that_it_passes() -> None:
    admission = busy()
    assert admission.admit([row(3_400)], 0) is None
    assert admission.finish_in_us(row(None), 0) == pytest.approx(2_000 + 1_000 + 1_000 * LEAST + 1_000)


def test_rows_of_a_batch_settle_before_it_is_staged() -> None:
    """Admitted in full, and late meanwhile; what that saves is its tenant's."""
    admission = busy()
    late, patient = row(5_500), row(9_000, tenant="other")
    assert admission.admit([late, patient], 0) is None
    assert not late.settles
    paid_us = admission.accounts.shares._ends_us.get("acme", 0.0)
    chosen = indices_of(admission, [late, patient])
    assert admission.infeasible(chosen, 1_000) == []
    assert (late.settles, patient.settles) == (False, False)
    assert admission.infeasible(chosen, 1_900) == []
    assert not late.settles
    admission.batches.finished(2_000)
    admission.batches.began(MINI, BatchShape(1, 100.0, 0.0, 1), 2_900)
    assert admission.infeasible(chosen, 3_000) == chosen[:1]
    assert (late.settles, patient.settles) == (True, False)
    assert admission.waiting.depth.tolist() == pytest.approx([LEAST, 1])
    assert admission.accounts.shares._ends_us.get("acme", 0.0) == pytest.approx(paid_us - 1_000 * (1 - LEAST))


def test_a_row_that_settles_and_does_not_run_costs_nothing() -> None:
    admission = busy()
    assert admission.admit([row(None, 1.0)], 0) is None
    before_us = admission.accounts.shares._ends_us.get("acme", 0.0)
    settles, other = row(None), row(4_700, tenant="other")
    assert admission.admit([settles], 0) is None
    assert admission.admit([other], 0) is None
    assert settles.settles
    admission.drop(indices_of(admission, [settles]))
    assert admission.accounts.shares._ends_us.get("acme", 0.0) == pytest.approx(before_us)


def test_rows_ahead_settle_as_many_as_it_takes() -> None:
    """The next ones first; rows without an earlier answer stay as they are."""
    admission = busy()
    ahead = [row(None, each) for each in (1.0, LEAST, LEAST, LEAST)]
    for each in ahead:
        assert admission.admit([each], 0) is None
    # At 2,000 + 1,000 + 4,000 us, and its own 1,000 or 333 us: two of the others have to settle.
    assert admission.admit([row(6_100)], 0) is None
    assert [each.settles for each in ahead] == [False, True, True, False]
    assert admission.waiting.depth.tolist() == pytest.approx([1, LEAST, LEAST, 1, LEAST])


def test_none_settles_for_a_row_that_would_be_late_all_the_same() -> None:
    admission = busy()
    ahead = [row(None) for _ in range(4)]
    for each in ahead:
        assert admission.admit([each], 0) is None
    assert admission.admit([row(4_600)], 0) is not None  # 2,000 + 1,000 + 5 * 333 us
    assert not any(each.settles for each in ahead)
    assert admission.admit([row(4_700)], 0) is None
    assert all(each.settles for each in ahead)


@pytest.mark.parametrize("order", [FairOrder(), LengthOrder(), DeadlineOrder()])
def test_nobody_settles_for_a_tenant_beyond_its_share(order: Order) -> None:
    admission = admission_of(LiveCosts(MODEL), AdmissionSettings(margin_percent=0), order=order)
    running = row(None, 1.0)
    assert admission.admit([running], 0) is None
    run(admission, [running], 0)
    others = [row(None, tenant=f"other {number}") for number in range(3)]
    for each in others:
        assert admission.admit([each], 0) is None
    flood = [row(None, 1.0, "flood") for _ in range(100)]
    for each in flood:
        assert admission.admit([each], 0) is None
    assert admission.admit([row(9_000, 1.0, "flood")], 0) is not None
    assert not any(each.settles for each in others)


def test_nobody_settles_for_a_request_that_is_rejected() -> None:
    """Its first row would be in time if others settled, and its second is late all the same."""
    admission = busy()
    ahead = [row(None) for _ in range(4)]
    for each in ahead:
        assert admission.admit([each], 0) is None
    paid_us, depths = admission.accounts.shares._ends_us.after(0), admission.waiting.depth.tolist()
    assert admission.admit([row(6_000), row(3_100)], 0) is not None
    assert admission.waiting.depth.tolist() == depths and not any(each.settles for each in ahead)
    assert admission.accounts.shares._ends_us.after(0) == pytest.approx(paid_us)
    assert admission.admit([row(6_000)], 0) is None
    assert any(each.settles for each in ahead)


def test_a_backlog_beyond_the_burst_settles_too() -> None:
    """What a tenant's rows would cost less, if they settled, counts where its turn comes by what it has used."""
    model = CostModel(1_000.0, 0.0, 100.0, 0.0, 0.0)
    admission = admission_of(LiveCosts(model), AdmissionSettings(margin_percent=0), Capacity(64, 10_000, 64))
    running = row(None, 1.0)
    assert admission.admit([running], 0) is None
    run(admission, [running], 0)
    ahead = [row(None) for _ in range(20)]  # 10 ms each
    for each in ahead:
        assert admission.admit([each], 0) is None
    assert admission.admit([row(120_000)], 0) is None
    assert admission.admit([row(60_000)], 0) is not None
    assert any(each.settles for each in ahead)


def waiting_behind_a_batch(ahead: list[Row], model: CostModel) -> Admission[Row]:
    """Rows that wait in batches of up to 64, while a row without an early answer runs."""
    admission = admission_of(LiveCosts(model), AdmissionSettings(margin_percent=0), Capacity(64, 10_000, 64))
    running = row(None, 1.0, "running")
    assert admission.admit([running], 0) is None
    run(admission, [running], 0)
    for each in ahead:
        assert admission.admit([each], 0) is None
    return admission


def test_no_more_settle_than_the_tenant_s_own_account_needs() -> None:
    """Its backlog is beyond its burst: that others' rows settle would not help, and one row of its own suffices."""
    model = CostModel(1_000.0, 0.0, 100.0, 0.0, 0.0)  # 10 ms a row
    others = [replace(row(None, tenant="other"), hplm_key=2) for _ in range(5)]
    acme = [replace(row(None), hplm_key=number % 2) for number in range(20)]
    admission = waiting_behind_a_batch([*others, *acme], model)
    admission._tenant_work.add("other", 500_000, 0)  # it has had all of the device lately, and may go on
    arriving = replace(row(None, 1.0), hplm_key=0)
    finish_us = admission.finish_in_us(arriving, 0)
    assert admission.admit([replace(arriving, deadline_us=round(finish_us - 12_000))], 0) is None
    assert sum(each.settles for each in acme) == 1
    assert acme[0].settles
    assert not any(each.settles for each in others)


def test_rows_of_the_same_tenant_settle_before_those_of_others() -> None:
    model = CostModel(1_000.0, 0.0, 100.0, 0.0, 0.0)
    other, another = (replace(row(None, tenant="other"), hplm_key=key) for key in (7, 8))
    its_other_hplm, own = (replace(row(None), hplm_key=key) for key in (5, 6))
    waiting = [other, its_other_hplm, another, own]
    admission = waiting_behind_a_batch(waiting, model)
    for settled in ([own], [own, its_other_hplm], [own, its_other_hplm, other]):
        arriving = replace(row(None, 1.0), hplm_key=6)
        finish_us = admission.finish_in_us(arriving, 0)
        assert admission.admit([replace(arriving, deadline_us=round(finish_us - 1_000))], 0) is None
        assert [each for each in waiting if each.settles] == [each for each in waiting if each in settled]


def test_one_row_less_would_not_be_enough() -> None:
    """In random queues of several tenants, against settling one row after the other."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    compared = 0
    for _ in range(60):
        model = CostModel(1_000.0, 0.0, rng.choice([10.0, 100.0]), 0.0, 0.0)
        ahead = [random_row(rng) for _ in range(rng.randint(1, 40))]
        arriving = random_row(rng)
        admissions = [waiting_behind_a_batch([replace(each) for each in ahead], model) for _ in range(2)]
        fast, slow = admissions
        arriving.depth = arriving.least_depth  # has settled itself
        full_us = fast.finish_in_us(arriving, 0)
        arriving.deadline_us = round(rng.uniform(least_us(fast, arriving), full_us)) + 1
        assert fast.admit([replace(arriving)], 0) is None, f"seed {seed}"
        settled = settled_one_by_one(slow, arriving)
        assert [each.settles for each in fast.waiting if each.deadline_us is None] == settled, f"seed {seed}"
        compared += 0 < sum(settled) < len(settled)
    assert compared > 10, f"seed {seed}"


def random_row(rng: random.Random) -> Row:
    tenant = rng.randrange(3)
    least_depth = rng.choice([LEAST, 0.5, 1.0])
    return Row(
        f"tenant {tenant}", rng.randint(20, 150), 0, hplm_key=2 * tenant + rng.randrange(2), least_depth=least_depth
    )


def may_settle(admission: Admission[Row], arriving: Row) -> list[bool]:
    """Tell which rows may: those that run before it and, for a tenant beyond its share, are its tenant's."""
    shares, starts_us = admission.accounts.shares, admission.waiting.start_us.tolist()
    start_us, is_beyond = shares.start_us(arriving.tenant), shares.is_beyond(arriving.tenant)
    return [
        its_start_us <= start_us and (each.tenant == arriving.tenant or not is_beyond)
        for each, its_start_us in zip(admission.waiting, starts_us, strict=True)
    ]


def least_us(admission: Admission[Row], arriving: Row) -> float:
    depths = np.where(may_settle(admission, arriving), admission.waiting.least_depth, admission.waiting.depth)
    return admission.finish_in_us(arriving, 0, supposed=Supposed(depths, admission.accounts.saves_us(arriving.tenant)))


def settled_one_by_one(admission: Admission[Row], arriving: Row) -> list[bool]:
    """Settle the next best row until the arriving one is in time, predicting anew after each."""
    waiting, may = list(admission.waiting), may_settle(admission, arriving)
    candidates = sorted(
        (index for index in range(len(waiting)) if may[index]),
        key=lambda index: (waiting[index].tenant != arriving.tenant, waiting[index].hplm_key != arriving.hplm_key),
    )
    for index in candidates:
        assert arriving.deadline_us is not None
        if admission.finish_in_us(arriving, 0) <= arriving.deadline_us:
            break
        admission.settling.settle(index)
    return [each.settles for each in waiting]


def test_settling_among_many_rows_looks_at_few_of_them() -> None:
    """The number of predictions that a row costs does not grow with the queue where few have to settle."""
    admission = waiting_behind_a_batch([row(None, tenant=f"tenant {number}") for number in range(2_000)], MODEL)
    counts: list[int] = []
    settling = admission.settling

    def is_enough(count: int) -> bool:
        counts.append(count)
        return count >= 3

    assert settling.settle_fewest(settling.candidates(row(None), np.ones(2_000, np.bool_)), is_enough)
    assert counts == [2_000, 1, 2, 4, 3]
    assert int((admission.waiting.depth < 1).sum()) == 3


def test_the_forecast_counts_on_it() -> None:
    """A lower process may reject no row that the engine would admit."""
    admission = busy()
    for _ in range(4):
        assert admission.admit([row(None)], 0) is None
    forecast = WaitForecast.of(admission, 0)
    assert forecast.finish_in_us(1) == pytest.approx(2_000 + 1_000 + 4_000 * LEAST)


def test_nothing_is_rejected_whose_earliest_answer_was_in_time() -> None:
    """In random queues that fit into one batch, against finish times that are added up row by row."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    settled = rejected = 0
    for _ in range(300):
        admission = busy()
        waiting: list[Row] = []
        for _ in range(chance.randint(1, CAPACITY.max_tokens // 100)):
            arriving = row(chance.randint(1, 12_000), chance.choice([LEAST, 0.5, 1.0]))
            before = sum(one.settles for one in waiting)
            rejection = admission.admit([arriving], 0)
            assert arriving.deadline_us is not None
            least_us = 3_000 + 1_000 * sum(one.least_depth for one in (*waiting, arriving))
            assert (least_us > arriving.deadline_us + 1e-6) == (rejection is not None), f"seed {seed}"
            if rejection is not None:
                rejected += 1
                assert sum(one.settles for one in waiting) == before, f"seed {seed}"
                continue
            waiting.append(arriving)
            settled += sum(one.settles for one in waiting) - before
            finish_us = 3_000 + 1_000 * sum(one.depth for one in waiting)
            assert finish_us <= arriving.deadline_us + 1e-6, f"seed {seed}"
    assert min(settled, rejected) > 100, f"seed {seed}"


@pytest.mark.parametrize(("level", "settles"), [("auto", True), ("full", False), ("early", False)])
def test_a_request_may_forbid_it(level: str, settles: bool) -> None:
    """One for `early` has settled from the start."""
    ladder = {"after": 2, "layers": 6, "answered_early": 0.5}
    domain = DomainEntry("mini", "general", 1, ())
    entry = HplmEntry(
        1, "acme/area", 1, "classification", ("a", "b"), domain, "f", {"levels": ["early", "full"], "ladder": ladder}
    )
    job = Job(entry, np.zeros((4, 8), np.float16), False, None, print, level=level)
    assert job.settles == (level == "early")
    assert job.settle() == settles
    assert job.depth == (1.0 if level == "full" else pytest.approx(1 / 3))
    assert not job.settle()


def test_a_row_that_runs_again_is_not_counted_on_where_it_may_not_settle() -> None:
    """Its batch has passed more layers than it was likely to."""
    ladder = {"after": 1, "layers": 2, "answered_early": 0.5}
    metrics = {"levels": ["early", "full"], "ladder": ladder, "declared": {"late": "reject"}}
    entry = HplmEntry(1, "acme/area", 1, "classification", ("a", "b"), DomainEntry("mini", "g", 1, ()), "f", metrics)
    job = Job(entry, np.zeros((4, 8), np.float16), False, None, print)
    job.depth = 1.0
    job.retry()
    assert job.least_depth == job.depth == 1.0 and not job.settle()

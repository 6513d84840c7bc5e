"""Admission in virtual time: an engine that takes exactly what the cost model says, and arrivals of all kinds."""

from __future__ import annotations

import math
import random
import re
import sys
from bisect import insort
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from admitted_rows import CAPACITY, MODEL, Row, admission_of
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.scheduling.admission import Admission
from backends.scheduling.admission_settings import AdmissionSettings, parse_weights
from backends.scheduling.backlog import Backlog, Load
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.fair_share import ShareSettings
from backends.scheduling.live_costs import LiveCosts
from backends.scheduling.order import DeadlineOrder, FairOrder, LengthOrder, Order, UtilityOrder
from backends.scheduling.refusal import Refusal

FAR = 1 << 40
"""Buckets behind it are of places without an end."""


@dataclass
class Outcome:
    in_time: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    """Admitted, and yet not answered in time."""
    refused: Counter[Refusal] = field(default_factory=Counter)
    arrived: Counter[str] = field(default_factory=Counter)
    work_us: Counter[str] = field(default_factory=Counter)

    def attainment(self, tenants: set[str]) -> float:
        return sum(self.in_time[one] for one in tenants) / sum(self.arrived[one] for one in tenants)


def simulate(
    rows: list[Row], admission: Admission, true: CostModel = MODEL, noise: float = 0.05, seed: int = 1
) -> Outcome:
    """One engine that runs batches in the order of fair shares; what is late when its batch begins is not run."""
    chance, outcome = random.Random(seed), Outcome()
    waiting: list[Row] = []
    arrivals = sorted(rows, key=lambda row: row.arrives_us)
    now, place = 0, 0
    while place < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[place].arrives_us)
        place = arrive_until(now, arrivals, place, admission, waiting, outcome)
        if not waiting:
            continue
        late = {row for row in waiting if row.deadline_us is not None and row.deadline_us <= now}
        admission.withdraw(list(late))
        outcome.late.update(row.tenant for row in late)
        waiting[:] = [row for row in waiting if row not in late]
        batch, waiting[:] = waiting[: CAPACITY.max_rows], waiting[CAPACITY.max_rows :]
        if not batch:
            continue
        shape = BatchShape.of(batch)
        admission.take(batch, now)
        admission.began("mini", shape, now)
        took_us = int(true.predict_us(shape) * max(0.5, chance.gauss(1, noise)))
        ends = now + took_us
        while place < len(arrivals) and arrivals[place].arrives_us <= ends:
            place = arrive_until(arrivals[place].arrives_us, arrivals, place, admission, waiting, outcome)
        now = ends
        admission.finished(now)
        for row in batch:
            in_time = row.deadline_us is None or now <= row.deadline_us
            (outcome.in_time if in_time else outcome.late)[row.tenant] += 1
            outcome.work_us[row.tenant] += int(true.row_us(row.num_tokens))
    assert admission.num_waiting == 0
    return outcome


def arrive_until(
    now: int, arrivals: list[Row], place: int, admission: Admission, waiting: list[Row], outcome: Outcome
) -> int:
    while place < len(arrivals) and arrivals[place].arrives_us <= now:
        row = arrivals[place]
        outcome.arrived[row.tenant] += 1
        refusal = admission.admit([row], row.arrives_us)
        if refusal is None:
            insort(waiting, row, key=admission.start_us)
        else:
            outcome.refused[refusal.reason] += 1
        place += 1
    return place


@pytest.mark.parametrize("order", [LengthOrder(), FairOrder()])
@pytest.mark.parametrize("left_us", [1, 5_000, 50_000])
def test_who_has_less_left_than_two_batches_is_overtaken_by_nobody(order: Order, left_us: int) -> None:
    """And not helped by those who come: with a flood of short rows, times before now once made up for what waits."""
    admission = admission_of(order=order)
    big = [Row("one", 60, 0, hplm_key=key) for key in range(16)]
    assert admission.admit(big, 0) is None
    admission.take(big, 0)
    admission.began("mini", BatchShape.of(big), 0)
    for now_us in range(1, 2_000):
        assert admission.admit([Row("two", 2, now_us)], now_us) is None
    job, patient = Row("two", 30, 0, 2_000 + left_us), Row("two", 30, 0)
    assert admission.finish_in_us(job, 2_000) >= admission.finish_in_us(patient, 2_000) > MODEL.row_us(30)


def test_with_room_in_the_next_batch_a_row_that_runs_when_due_is_overtaken_by_nobody_later() -> None:
    """Rows of `das` that miss the next batch still have their turn; with `sjf` they might never."""
    finish_in_us = {}
    for order in (UtilityOrder(0.5, 0.5), LengthOrder()):
        admission = admission_of(order=order)
        for now_us in range(0, 400_000, 500):
            short = [Row("one", 10, now_us, now_us + 1_000_000)]
            assert admission.admit(short, now_us) is None
            admission.take(short, now_us)
            admission.began("mini", BatchShape.of(short), now_us)
        job = Row("two", 15, 400_000, 1_400_000)
        finish_in_us[type(order)] = admission.finish_in_us(job, 400_000)
    alone_us = admission_of().finish_in_us(Row("two", 15, 0, 1_000_000), 0)
    assert finish_in_us[UtilityOrder] <= 4 * alone_us < 40 * alone_us <= finish_in_us[LengthOrder]


def test_a_request_is_admitted_whole_or_not_at_all_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = admission_of()
    rows = [Row("one", 5, 0), Row("one", 6, 0), Row("one", 7, 0)]
    refusal = Admission._refusal

    def fail_at_the_last(self: Admission, job: Row, *details: object) -> object:
        if job is rows[-1]:
            raise ZeroDivisionError("a defect")
        return refusal(self, job, *details)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Admission, "_refusal", fail_at_the_last)
        with pytest.raises(ZeroDivisionError):
            admission.admit(rows, 0)
    assert admission.num_waiting == 0
    assert admission.admit(rows, 0) is None


@pytest.mark.parametrize("predicts", [True, False])
def test_who_would_be_late_in_the_next_batch_is_hopeless(predicts: bool) -> None:
    admission = admission_of(settings=AdmissionSettings(predicts=predicts))
    first = [Row("one", 30, 0), Row("two", 10, 0)]
    done_us = 1_000 + MODEL.predict_us(BatchShape.of(first))
    rows = [Row("one", 20, 0, deadline_us) for deadline_us in (1_500, int(done_us), 10**7)] + [Row("one", 20, 0)]
    done_us += MODEL.predict_us(BatchShape.of(rows))
    rows += [Row("two", 1, 0, int(done_us) - 900), Row("two", 1, 0, int(1.2 * done_us))]
    assert admission.hopeless(rows, 0) == [], "an idle engine runs whatever waits"
    assert admission.admit(first, 0) is None
    admission.take(first, 1_000)
    admission.began("mini", BatchShape.of(first), 1_000)
    assert admission.hopeless(rows, 1_400) == ([rows[0], rows[1], rows[4]] if predicts else [])
    admission.finished(2_000)
    assert admission.hopeless(rows, 2_000) == []


def poisson(
    chance: random.Random,
    tenant: str,
    rows_per_s: float,
    seconds: float,
    deadlines: tuple[float, float] | None = (5.0, 20.0),
) -> list[Row]:
    """Lengths around 20; deadlines so many batches' times from the arrival."""
    batch_us = full_batch_us()
    rows, at_s = [], chance.expovariate(rows_per_s)
    while at_s < seconds:
        now = int(1e6 * at_s)
        limit = None if deadlines is None else now + int(batch_us * chance.uniform(*deadlines))
        rows.append(Row(tenant, max(3, min(100, int(chance.gauss(20, 8)))), now, limit))
        at_s += chance.expovariate(rows_per_s)
    return rows


def full_batch_us() -> float:
    return MODEL.predict_us(BatchShape(CAPACITY.max_rows, 20 * CAPACITY.max_rows, 0, 1))


def capacity_rows_per_s() -> float:
    return 1e6 * CAPACITY.max_rows / full_batch_us()


@pytest.mark.parametrize("load", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("num_tenants", [1, 40])
def test_what_is_admitted_is_answered_in_time_at_any_load(load: float, num_tenants: int) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    rate = load * capacity_rows_per_s() / num_tenants
    rows = [row for number in range(num_tenants) for row in poisson(chance, f"t{number}", rate, 10)]
    outcome = simulate(rows, admission_of(), seed=seed)
    admitted = sum(outcome.in_time.values()) + sum(outcome.late.values())
    assert sum(outcome.in_time.values()) >= 0.99 * admitted, f"seed {seed}: {outcome.late.total()} of {admitted} late"
    expected = min(1.0, 1 / load)
    assert outcome.in_time.total() >= 0.85 * expected * len(rows), f"seed {seed}: too much was refused"


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_model_that_is_twice_wrong_recovers_within_200_batches(factor: float) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    costs = LiveCosts(MODEL.scaled(factor))
    rate = 2 * capacity_rows_per_s()
    simulate(poisson(chance, "acme", rate, 200 * full_batch_us() / 1e6), admission_of(costs))
    assert costs.predict_us(BatchShape(16, 320, 0, 1)) == pytest.approx(full_batch_us(), rel=0.1)
    later = simulate(poisson(chance, "acme", rate, 10), admission_of(costs))
    admitted = later.in_time.total() + later.late.total()
    assert later.in_time.total() >= 0.99 * admitted, f"seed {seed}"


def test_figures_tell_how_far_batches_are_from_the_profile_and_from_what_was_learned() -> None:
    seed = random.randrange(1 << 30)
    admission = admission_of(LiveCosts(MODEL.scaled(0.5)))
    simulate(poisson(random.Random(seed), "acme", 2 * capacity_rows_per_s(), 200 * full_batch_us() / 1e6), admission)
    figures = admission.figures
    assert figures.batches > 150, f"seed {seed}"
    assert figures.measured_us / figures.uncorrected_us == pytest.approx(2.0, rel=0.1), f"seed {seed}"
    assert figures.measured_us / figures.predicted_us == pytest.approx(1.0, rel=0.1), f"seed {seed}"


def test_a_request_of_many_rows_finds_a_wrong_model_out_too() -> None:
    admission = admission_of(LiveCosts(MODEL.scaled(100.0)))
    rows = [Row("acme", 20, 0, 100_000) for _ in range(16)]
    assert admission.admit(rows, 0) is None
    assert admission.admit([Row("acme", 20, 0, 100_000)], 0) is not None


def test_a_model_that_says_nothing_can_be_answered_is_found_out() -> None:
    """Who meets an idle engine is let in after a while, or the model could never be corrected."""
    costs = LiveCosts(MODEL.scaled(10.0))
    rows = [Row("acme", 20, at * 1_500_000, at * 1_500_000 + 100_000) for at in range(40)]
    outcome = simulate(rows, admission_of(costs))
    assert outcome.in_time.total() == 40
    rows = poisson(random.Random(3), "acme", capacity_rows_per_s() / 2, 10)
    assert simulate(rows, admission_of(costs)).in_time.total() > 0.5 * len(rows)


def flooded(seed: int, with_flood: bool, deadlines: tuple[float, float] | None) -> tuple[Outcome, set[str]]:
    """20 tenants that ask for about their share, 1/21 of the capacity, and one that asks for 50 times that."""
    chance = random.Random(seed)
    others = {f"t{number}" for number in range(20)}
    share = 0.9 * capacity_rows_per_s() / 21
    rows = [row for tenant in sorted(others) for row in poisson(chance, tenant, share, 12)]
    if with_flood:
        rows += poisson(chance, "flood", 50 * share, 12, deadlines)
    return simulate(rows, admission_of(), seed=seed), others


@pytest.mark.parametrize("deadlines", [(5.0, 20.0), None], ids=["with deadlines", "best effort"])
def test_a_flood_costs_the_others_at_most_two_points(deadlines: tuple[float, float] | None) -> None:
    seed = random.randrange(1 << 30)
    alone, others = flooded(seed, False, deadlines)
    beside, _ = flooded(seed, True, deadlines)
    fallen = alone.attainment(others) - beside.attainment(others)
    assert fallen <= 0.02, f"seed {seed}: {alone.attainment(others):.3f} -> {beside.attainment(others):.3f}"
    assert beside.in_time["flood"] > 0, "nobody starves"


def test_weights_part_the_device() -> None:
    chance = random.Random(random.randrange(1 << 30))
    rate = 3 * capacity_rows_per_s()
    rows = [row for tenant in ("heavy", "light") for row in poisson(chance, tenant, rate, 10)]
    settings = AdmissionSettings(shares=ShareSettings({"heavy": 3.0}, burst_us=5_000))
    outcome = simulate(rows, admission_of(settings=settings))
    assert outcome.work_us["heavy"] / outcome.work_us["light"] == pytest.approx(3.0, rel=0.2)


def test_best_effort_waits_and_is_answered() -> None:
    """Rows without a deadline are never refused for being late, and come to their turn among those with one."""
    chance = random.Random(random.randrange(1 << 30))
    rows = poisson(chance, "patient", 0.2 * capacity_rows_per_s(), 10, deadlines=None)
    patient = len(rows)
    rows += poisson(chance, "hasty", 2 * capacity_rows_per_s(), 10)
    outcome = simulate(rows, admission_of())
    assert outcome.in_time["patient"] == patient


def test_a_refusal_says_what_was_predicted() -> None:
    admission = admission_of(settings=AdmissionSettings(margin_percent=0))
    batch = [Row("acme", 20, 0) for _ in range(16)]
    assert admission.admit(batch, 0) is None
    admission.take(batch, 0)
    admission.began("mini", BatchShape.of(batch), 0)
    refusal = admission.admit([Row("acme", 20, 0, deadline_us=5_000)], 0)
    assert refusal is not None
    assert refusal.reason is Refusal.PREDICTED_LATE
    predicted_us = MODEL.predict_us(BatchShape.of(batch)) + MODEL.predict_us(BatchShape(1, 20, 0, 1))
    told = re.search(r"predicted to be answered in (\d+) ms", str(refusal))
    # A little more, because others are likely to share its batch.
    assert told is not None and predicted_us <= 1000 * int(told[1]) <= 1.1 * predicted_us + 500
    assert "the deadline is in 5 ms" in str(refusal)
    assert admission.num_waiting == 0


def test_whoever_is_late_when_it_comes_has_not_waited() -> None:
    admission = admission_of()
    batch = [Row("acme", 20, 0) for _ in range(16)]
    assert admission.admit(batch, 0) is None
    refusal = admission.admit([Row("acme", 20, 0, deadline_us=5_000)], 5_000)
    assert refusal is not None and refusal.reason is Refusal.LATE_ON_ARRIVAL
    assert "on the way" in str(refusal)


def test_what_is_put_back_is_charged_once() -> None:
    admission, row = admission_of(order=LengthOrder()), Row("acme", 20, 0)
    assert admission.admit([row], 0) is None
    charged_us = admission._allowance._used_us["acme"]
    for _ in range(3):
        admission.take([row], 0)
        admission.put_back([row])
    assert charged_us > 0
    assert admission._allowance._used_us["acme"] == pytest.approx(charged_us)
    admission.withdraw([row])
    assert admission._allowance._used_us["acme"] == pytest.approx(0.0)


def test_a_request_waits_with_all_its_rows_or_with_none() -> None:
    admission = admission_of(settings=AdmissionSettings(max_waiting=10, tenant_quota=4))
    refusal = admission.admit([Row("acme", 20, 0) for _ in range(5)], 0)
    assert refusal is not None and refusal.reason is Refusal.TENANT_QUOTA
    assert admission.num_waiting == 0
    assert admission.admit([Row("acme", 20, 0) for _ in range(4)], 0) is None
    assert admission.admit([Row("globex", 20, 0) for _ in range(4)], 0) is None
    refusal = admission.admit([Row("initech", 20, 0) for _ in range(3)], 0)
    assert refusal is not None and refusal.reason is Refusal.QUEUE_FULL


def test_in_a_crowded_queue_nobody_holds_more_than_its_share() -> None:
    admission = admission_of(settings=AdmissionSettings(max_waiting=100, tenant_quota=100))
    for _ in range(60):
        assert admission.admit([Row("acme", 20, 0)], 0) is None
    assert admission.admit([Row("globex", 20, 0)], 0) is None
    refusal = admission.admit([Row("acme", 20, 0)], 0)
    assert refusal is not None and refusal.reason is Refusal.TENANT_SHARE
    assert admission.admit([Row("globex", 20, 0)], 0) is None


def test_sums_beyond_the_ring_count_where_they_belong() -> None:
    """Places of many seconds, against sums over all rows."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    backlog, rows = Backlog(1000.0), list[tuple[int, Load]]()
    floor = 0.0
    for _ in range(6000):
        if rows and chance.random() < 0.45:
            bucket, load = rows.pop(min(range(len(rows)), key=lambda at: rows[at][0]) if chance.random() < 0.9 else 0)
            backlog.remove(bucket, load)
            floor = floor if bucket > FAR else max(floor, 1000.0 * bucket)
        else:
            load = Load(1.0, chance.randint(1, 9), chance.random())
            behind = chance.choice((0, 0, 5, 3000, 5000, 40_000, -5, -3000, math.inf))
            bucket = backlog.bucket(max(0.0, floor + 1000.0 * behind))
            backlog.add(bucket, load)
            rows.append((bucket, load))
        assert len(backlog) == len(rows)
        if rows:
            first = min(bucket for bucket, _ in rows)
            assert backlog.first_place == 1000.0 * first, f"seed {seed}"
            upper = max(0, min(first, FAR) + chance.randrange(-5, 4096))
            ahead = sum(load.tokens for bucket, load in rows if bucket <= upper)
            assert backlog.up_to(1000.0 * upper).tokens == pytest.approx(ahead), f"seed {seed}"
            # Further behind it is exact to the length of the ring; nothing without an end is ever among it.
            upper = min(first, FAR) + chance.randrange(4096, 60_000)
            least = sum(load.tokens for bucket, load in rows if bucket <= upper)
            most = sum(load.tokens for bucket, load in rows if bucket < upper + 4096)
            assert least - 1e-6 <= backlog.up_to(1000.0 * upper).tokens <= most + 1e-6, f"seed {seed}"
            assert backlog.work_us == pytest.approx(sum(load.work_us for _, load in rows), abs=1e-6), f"seed {seed}"


def test_random_comings_and_goings_leave_no_sums_behind() -> None:
    """The running sums against sums over everything that waits, through all ways in and out."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    admission, waiting, taken, now = admission_of(), list[Row](), list[Row](), 0
    for _ in range(3000):
        now += chance.randrange(3000)
        match chance.randrange(5):
            case 0 | 1:
                rows = [Row(f"t{chance.randrange(6)}", chance.randint(3, 60), now) for _ in range(chance.randint(1, 5))]
                rows = [replace(row, hplm_key=chance.randrange(9)) for row in rows]
                if admission.admit(rows, now) is None:
                    waiting += rows
            case 2:
                waiting, taken = split(chance, waiting)
                admission.take(taken, now)
            case 3:
                back = taken[: len(taken) // 2]
                admission.put_back(back)
                waiting, taken = back + waiting, []
            case 4:
                waiting, gone = split(chance, waiting)
                admission.withdraw(gone)
        assert admission.num_waiting == len(waiting), f"seed {seed}"
        expected_us = sum(MODEL.row_us(row.num_tokens) for row in waiting)
        for backlog in (admission._by_start, admission._within.waiting):
            assert backlog.work_us == pytest.approx(expected_us, abs=1e-3), f"seed {seed}"
        for row in chance.sample(waiting, min(3, len(waiting))):
            place = admission._places[row]
            ahead = admission._within.waiting.up_to(place.start_us)
            slow = [other for other in waiting if admission._places[other].order_bucket <= place.order_bucket]
            assert ahead.rows == pytest.approx(len(slow)), f"seed {seed}"
            assert ahead.tokens == pytest.approx(sum(other.num_tokens for other in slow)), f"seed {seed}"
    admission.withdraw(waiting)
    assert not admission._places and not admission._adapters and not admission._shares._rows


def split(chance: random.Random, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    apart = set(chance.sample(range(len(rows)), chance.randint(0, min(8, len(rows)))))
    return [row for place, row in enumerate(rows) if place not in apart], [rows[place] for place in apart]


@pytest.mark.parametrize("order", [FairOrder(), LengthOrder(), DeadlineOrder()])
def test_a_decision_costs_the_same_however_many_wait(order: Order) -> None:
    """The steps of a decision are counted, not timed: with very many waiting there are as many as with a few."""
    unlimited = AdmissionSettings(max_waiting=2_000_000, tenant_quota=2_000_000)
    few, many = admission_of(order=order), admission_of(settings=unlimited, order=order)
    for admission, count in ((few, 100), (many, 200_000)):
        for number in range(count):
            assert admission.admit([Row(f"t{number % 50}", 20, number)], number) is None
    assert lines_run(many) <= 1.2 * lines_run(few)


def lines_run(admission: Admission) -> int:
    count = 0

    def trace(*_: object) -> object:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        assert admission.admit([Row("t1", 20, 0, deadline_us=10)], 3_000_000) is not None
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_waiting": "0"},
        {"max_waiting": "many"},
        {"tenant_quota": "0"},
        {"margin_percent": "900"},
        {"admission": "maybe"},
        {"burst_ms": "-1"},
        {"tenant_weights": "acme"},
        {"tenant_weights": "acme=0"},
        {"tenant_weights": "acme=x"},
        {"tenant_weights": "acme=nan"},
        {"tenant_weights": "acme=1,acme=2"},
        {"tenant_weights": "acme/topic=1"},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, str], tmp_path: object) -> None:
    with pytest.raises(InvalidArgumentError):
        AdmissionSettings.from_model(ModelSettings(Home(tmp_path), wrong))  # type: ignore[arg-type]


def test_settings_travel_through_a_models_configuration(tmp_path: object) -> None:
    shares = ShareSettings(parse_weights("acme=3, globex=0.5"), burst_us=20_000)
    for settings in (AdmissionSettings(), AdmissionSettings(500, 20, False, 25, shares)):
        assert AdmissionSettings.from_model(ModelSettings(Home(tmp_path), settings.parameters)) == settings  # type: ignore[arg-type]


def test_promises_that_are_broken_make_others_longer_until_nobody_waits() -> None:
    admission = admission_of()
    batch = [Row(f"t{number}", 20, 0, hplm_key=number) for number in range(8)]
    waiting = [Row(f"t{number}", 20, 0, 10**9) for number in range(30)]
    assert admission.admit([*batch, *waiting], 0) is None
    least = admission.margin
    admission.take(batch, 0)
    admission.began("mini", BatchShape.of(batch), 0)
    admission.give_up(waiting[:10])
    assert admission.margin == pytest.approx(least + 0.10), "given up"
    admission.finished(10_000, late=3)
    assert admission.margin == pytest.approx(least + 0.13, abs=0.001), "too late once computed"
    admission.began("mini", BatchShape.of(waiting[10:20]), 10_000)
    admission.finished(10_000, has_run=False, late=10)
    assert admission.margin == pytest.approx(least + 0.23, abs=0.001), "too late before they were"
    admission.withdraw(waiting[10:])
    assert admission.admit([Row("another", 20, 20_000, 10**9)], 20_000) is None
    assert admission.margin == least


def test_a_flood_is_promised_what_the_last_one_could_be_kept() -> None:
    admission = admission_of()
    least = admission.margin

    def flood(now_us: int, broken: int) -> float:
        """The margin once the flood shows, of whose promises so many are broken."""
        batch = [Row(f"t{number}", 20, now_us, hplm_key=number) for number in range(8)]
        waiting = [Row(f"t{number}", 20, now_us, now_us + 10**9) for number in range(30)]
        assert admission.admit(batch, now_us) is None
        admission.take(batch, now_us)
        admission.began("mini", BatchShape.of(batch), now_us)
        assert admission.margin == least, "no flood yet"
        assert admission.admit(waiting, now_us) is None
        shown = admission.margin
        admission.give_up(waiting[:broken])
        admission.finished(now_us + 10_000, late=broken)
        admission.withdraw(waiting[broken:])
        return shown

    assert flood(0, broken=10) == least
    assert flood(20_000, broken=0) == pytest.approx(least + 0.20, abs=0.005)
    assert flood(600_020_000, broken=0) == pytest.approx(least + 0.10, abs=0.005), "ten minutes later"

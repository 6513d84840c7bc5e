"""Admission in virtual time: an engine that takes exactly what the cost model says, and arrivals of all kinds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from admitted_rows import CAPACITY, MINI, MODEL, Row, admission_of
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.rejection import Rejection
from backends.scheduling.settings import AdmissionSettings, Capacity, ShareSettings


@dataclass
class Outcome:
    in_time: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    """Admitted, and yet not answered in time."""
    rejected: Counter[Rejection] = field(default_factory=Counter)
    arrived: Counter[str] = field(default_factory=Counter)
    work_us: Counter[str] = field(default_factory=Counter)

    def attainment(self, tenants: set[str]) -> float:
        return sum(self.in_time[one] for one in tenants) / sum(self.arrived[one] for one in tenants)


def simulate(
    rows: list[Row],
    admission: Admission[Row],
    true: CostModel = MODEL,
    noise: float = 0.05,
    seed: int = 1,
    capacity: Capacity = CAPACITY,
) -> Outcome:
    """One engine that runs batches in the order of fair shares; rows that are late by then do not run."""
    rng, outcome = random.Random(seed), Outcome()
    arrivals = sorted(rows, key=lambda row: row.arrived_us)
    now, number = 0, 0
    while number < len(arrivals) or admission.waiting:
        if not admission.waiting:
            now = max(now, arrivals[number].arrived_us)
        number = arrive_until(now, arrivals, number, admission, outcome)
        outcome.late.update(row.tenant for row in admission.drop_late(now))
        if not admission.waiting:
            continue
        batch = admission.take_batch(range(min(capacity.max_rows, len(admission.waiting))), now)
        shape = BatchShape.of(batch)
        admission.batches.began(MINI, shape, now)
        ends = now + int(true.predict_us(shape) * max(0.5, rng.gauss(1, noise)))
        while number < len(arrivals) and arrivals[number].arrived_us <= ends:
            number = arrive_until(arrivals[number].arrived_us, arrivals, number, admission, outcome)
        now = ends
        admission.batches.finished(now)
        for row in batch:
            in_time = row.deadline_us is None or now <= row.deadline_us
            (outcome.in_time if in_time else outcome.late)[row.tenant] += 1
            outcome.work_us[row.tenant] += int(true.row_us(row.num_tokens))
    return outcome


def arrive_until(now: int, arrivals: list[Row], number: int, admission: Admission[Row], outcome: Outcome) -> int:
    while number < len(arrivals) and arrivals[number].arrived_us <= now:
        row = arrivals[number]
        outcome.arrived[row.tenant] += 1
        rejection = admission.admit([row], row.arrived_us)
        if rejection is not None:
            outcome.rejected[rejection.reason] += 1
        number += 1
    return number


def poisson(
    rng: random.Random,
    tenant: str,
    rows_per_s: float,
    seconds: float,
    deadlines: tuple[float, float] | None = (5.0, 20.0),
) -> list[Row]:
    """Lengths around 20; deadlines so many batches' times from the arrival."""
    batch_us = full_batch_us()
    rows, at_s = [], rng.expovariate(rows_per_s)
    while at_s < seconds:
        now = int(1e6 * at_s)
        limit = None if deadlines is None else now + int(batch_us * rng.uniform(*deadlines))
        rows.append(Row(tenant, max(3, min(100, int(rng.gauss(20, 8)))), now, limit))
        at_s += rng.expovariate(rows_per_s)
    return rows


def full_batch_us() -> float:
    return MODEL.predict_us(BatchShape(CAPACITY.max_rows, 20 * CAPACITY.max_rows, 0, 1))


def capacity_rows_per_s() -> float:
    return 1e6 * CAPACITY.max_rows / full_batch_us()


@pytest.mark.parametrize("load", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("num_tenants", [1, 40])
def test_what_is_admitted_is_answered_in_time_at_any_load(load: float, num_tenants: int) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    rate = load * capacity_rows_per_s() / num_tenants
    rows = [row for number in range(num_tenants) for row in poisson(rng, f"t{number}", rate, 6)]
    outcome = simulate(rows, admission_of(), seed=seed)
    admitted = sum(outcome.in_time.values()) + sum(outcome.late.values())
    assert sum(outcome.in_time.values()) >= 0.99 * admitted, f"seed {seed}: {outcome.late.total()} of {admitted} late"
    expected = min(1.0, 1 / load)
    assert outcome.in_time.total() >= 0.85 * expected * len(rows), f"seed {seed}: too much was rejected"


@pytest.mark.parametrize("exponent", [0, 1], ids=["alike", "one large"])
def test_promises_hold_where_every_tenant_is_beyond_its_share(exponent: int) -> None:
    """Large batches beside bursts of a few rows: what others may still request at once overtakes the row."""
    seed, capacity, model = random.randrange(1 << 30), Capacity(64, 8192, 64), CostModel(20_000, 0, 340, 0, 300)
    rng = random.Random(seed)
    parts = {f"t{number}": 1 / (number + 1) ** exponent for number in range(32)}
    rate = 2 * 64e6 / model.predict_us(BatchShape(64, 64 * 20, 0, 32)) / sum(parts.values())
    rows = [row for name, part in parts.items() for row in poisson(rng, name, rate * part, 15, (125.0, 500.0))]
    outcome = simulate(rows, admission_of(LiveCosts(model), capacity=capacity), model, seed=seed, capacity=capacity)
    admitted = outcome.in_time.total() + outcome.late.total()
    assert outcome.in_time.total() >= 0.995 * admitted, f"seed {seed}: {outcome.late.total()} of {admitted} late"
    assert outcome.in_time.total() >= 0.4 * len(rows), f"seed {seed}: too much was rejected"


@pytest.mark.parametrize("factor", [0.5, pytest.param(2.0, marks=pytest.mark.long)])
def test_a_model_that_is_twice_wrong_recovers_within_200_batches(factor: float) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    costs = LiveCosts(MODEL.scaled(factor))
    rate = 2 * capacity_rows_per_s()
    simulate(poisson(rng, "acme", rate, 200 * full_batch_us() / 1e6), admission_of(costs))
    assert costs.predict_us(BatchShape(16, 320, 0, 1)) == pytest.approx(full_batch_us(), rel=0.1)
    later = simulate(poisson(rng, "acme", rate, 10), admission_of(costs))
    admitted = later.in_time.total() + later.late.total()
    assert later.in_time.total() >= 0.99 * admitted, f"seed {seed}"


def test_figures_tell_how_far_batches_are_from_the_profile_and_from_what_was_learned() -> None:
    seed = random.randrange(1 << 30)
    admission = admission_of(LiveCosts(MODEL.scaled(0.5)))
    simulate(poisson(random.Random(seed), "acme", 2 * capacity_rows_per_s(), 200 * full_batch_us() / 1e6), admission)
    figures = admission.batches.figures
    assert figures.batches > 150, f"seed {seed}"
    assert figures.measured_us / figures.uncorrected_us == pytest.approx(2.0, rel=0.1), f"seed {seed}"
    assert figures.measured_us / figures.predicted_us == pytest.approx(1.0, rel=0.1), f"seed {seed}"


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
    rng = random.Random(seed)
    others = {f"t{number}" for number in range(20)}
    share = 0.9 * capacity_rows_per_s() / 21
    rows = [row for tenant in sorted(others) for row in poisson(rng, tenant, share, 8)]
    if with_flood:
        rows += poisson(rng, "flood", 50 * share, 8, deadlines)
    return simulate(rows, admission_of(), seed=seed), others


@pytest.mark.parametrize("deadlines", [(5.0, 20.0), None], ids=["with deadlines", "best effort"])
def test_a_flood_costs_the_others_at_most_two_points(deadlines: tuple[float, float] | None) -> None:
    seed = random.randrange(1 << 30)
    alone, others = flooded(seed, False, deadlines)
    beside, _ = flooded(seed, True, deadlines)
    fallen = alone.attainment(others) - beside.attainment(others)
    assert fallen <= 0.02, f"seed {seed}: {alone.attainment(others):.3f} -> {beside.attainment(others):.3f}"
    assert beside.in_time["flood"] > 0, "nobody starves"


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_a_burst_that_fits_beside_many_small_tenants_is_admitted(load: float) -> None:
    """All who wait are not all who go on asking: a burst needs 40 % of what they leave until it is due."""
    seed, capacity, model = random.randrange(1 << 30), Capacity(64, 8192, 64), CostModel(10_000, 0, 70, 0, 100)
    rows_per_s = 64e6 / model.predict_us(BatchShape(64, 64 * 20, 0, 64))
    rng = random.Random(seed)
    small = {f"t{number}" for number in range(200)}
    rows = [row for name in sorted(small) for row in poisson(rng, name, load * rows_per_s / 200, 18, (30.0, 100.0))]
    due_us = 3_000_000
    burst = round(0.4 * (1 - load) * rows_per_s * due_us / 1e6)
    for at_us in range(1_500_000, 15_000_000, 3_100_000):
        rows += [Row("burst", 20, at_us, at_us + due_us) for _ in range(burst)]
    outcome = simulate(rows, admission_of(LiveCosts(model), capacity=capacity), model, seed=seed, capacity=capacity)
    assert outcome.attainment({"burst"}) >= 0.98, f"seed {seed}"
    assert outcome.attainment(small) > 0.99, f"seed {seed}"


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_a_burst_is_promised_no_more_where_the_others_have_just_begun(load: float) -> None:
    """After a quiet time, a third of a second tells how much the others go on asking for."""
    seed, capacity, model = random.randrange(1 << 30), Capacity(64, 8192, 64), CostModel(10_000, 0, 70, 0, 100)
    rows_per_s = 64e6 / model.predict_us(BatchShape(64, 64 * 20, 0, 64))
    rng, begin_us, due_us = random.Random(seed), 20_000_000, 2_500_000
    small = {f"t{number}" for number in range(200)}
    rows = [row for name in sorted(small) for row in poisson(rng, name, load * rows_per_s / 200, 4, (30.0, 100.0))]
    for row in rows:
        row.arrived_us += begin_us
        row.deadline_us = begin_us + (row.deadline_us or 0)
    rows += [Row("burst", 20, 0, due_us)]  # the engine has been asked before
    at_us = begin_us + 330_000
    rows += [Row("burst", 20, at_us, at_us + due_us) for _ in range(1_500)]
    outcome = simulate(rows, admission_of(LiveCosts(model), capacity=capacity), model, seed=seed, capacity=capacity)
    admitted = outcome.in_time["burst"] + outcome.late["burst"]
    assert outcome.late["burst"] <= 0.05 * admitted, f"seed {seed}: {outcome.late['burst']} of {admitted} late"
    assert outcome.in_time["burst"] >= 0.4 * (1 - load) * rows_per_s * due_us / 1e6, f"seed {seed}"
    assert outcome.attainment(small) > 0.99, f"seed {seed}"


def test_weights_part_the_device() -> None:
    rng = random.Random(random.randrange(1 << 30))
    rate = 3 * capacity_rows_per_s()
    rows = [row for tenant in ("heavy", "light") for row in poisson(rng, tenant, rate, 5)]
    settings = AdmissionSettings(shares=ShareSettings({"heavy": 3.0}, burst_us=5_000))
    outcome = simulate(rows, admission_of(settings=settings))
    assert outcome.work_us["heavy"] / outcome.work_us["light"] == pytest.approx(3.0, rel=0.2)


def test_best_effort_waits_and_is_answered() -> None:
    """Rows without a deadline are never rejected for being late, and come to their turn among those with one."""
    rng = random.Random(random.randrange(1 << 30))
    rows = poisson(rng, "patient", 0.2 * capacity_rows_per_s(), 10, deadlines=None)
    patient = len(rows)
    rows += poisson(rng, "hasty", 2 * capacity_rows_per_s(), 10)
    outcome = simulate(rows, admission_of())
    assert outcome.in_time["patient"] == patient


def test_batches_that_vary_make_the_margin_larger_and_steady_ones_what_is_set() -> None:
    margins = {}
    for noise in (0.0, 0.4):
        costs = LiveCosts(MODEL)
        rows = poisson(random.Random(7), "acme", 2 * capacity_rows_per_s(), 5)
        simulate(rows, admission_of(costs), noise=noise)
        margins[noise] = admission_of(costs).margin(costs)
    assert margins[0.0] == 1.25 and margins[0.4] > 1.4

"""What the processes in front are told: hardly ever more than what a row that is admitted takes."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from admitted_rows import CAPACITY, MINI, MODEL, Row, admission_of, run
from backends import clock
from backends.scheduling import wait_forecast
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.order import DeadlineOrder, FairOrder, LengthOrder, Order, UtilityOrder
from backends.scheduling.settings import AdmissionSettings
from backends.scheduling.wait_forecast import LENGTHS, MAX_TENANTS, WaitForecast
from backends.server_folder import FOLDER_VARIABLE
from backends.stack_key import StackKey

ASKED_EVERY = 3
"""A forecast costs far more than an admission, so only one row in three asks for one."""
ORDERS = pytest.mark.parametrize(
    "order",
    [
        pytest.param(LengthOrder(), marks=pytest.mark.long),
        pytest.param(UtilityOrder(0.5, 0.5), marks=pytest.mark.long),
        DeadlineOrder(),
        FairOrder(),
    ],
)


def run_next_batch(admission: Admission[Row], now_us: int) -> None:
    admission.batches.finished(now_us)
    if admission.waiting:
        batch = admission.take_batch(range(min(16, len(admission.waiting))), now_us)
        admission.batches.began(MINI, BatchShape.of(batch), now_us)


@ORDERS
def test_an_admitted_row_is_due_no_earlier_than_is_told_of_its_length(order: Order, seed: int) -> None:
    """Reject hardly any row in front of the engine that it would admit, and those mostly as a near thing."""
    rng = random.Random(seed)
    admission, spare_us, now_us, longest_us = admission_of(order=order), list[float](), 0, 0.0
    for number in range(3_000):
        now_us += rng.randrange(600)
        job = Row(f"new{number}", rng.randint(1, 120), now_us, now_us + round(1000 * 2 ** rng.uniform(2, 9)))
        if number % ASKED_EVERY:
            admission.admit([job], now_us)
        else:
            deadline_in_us = job.deadline_us - now_us
            told_us = WaitForecast.of(admission, now_us).finish_in_us(job.num_tokens, (job.tenant,), deadline_in_us)
            if admission.admit([job], now_us) is None:
                spare_us.append(deadline_in_us - told_us)
        if number % 16 == 15:
            run_next_batch(admission, now_us)
            longest_us = max(longest_us, admission.batches.busy_us(now_us))
    assert len(spare_us) > 300
    assert sum(one < 0 for one in spare_us) <= 0.02 * len(spare_us)
    assert sum(one < -longest_us for one in spare_us) <= 0.005 * len(spare_us)


def test_in_fair_order_a_deadline_makes_no_difference(seed: int) -> None:
    """The forecast relies on it, and predicts for one deadline only."""
    rng = random.Random(seed)
    admission = admission_of(order=FairOrder())
    for number in range(200):
        admission.admit([Row(f"t{number % 20}", rng.randint(1, 60), 100 * number, 10**9)], 100 * number)
    rows = [Row("new", 20, 20_000, 20_000 + in_us) for in_us in (1, 10**3, 10**5, 10**7, 10**9)]
    assert len(admission.waiting) > 100
    assert len({admission.finish_in_us(row, 20_000) for row in rows}) == 1


@pytest.mark.parametrize("order", [LengthOrder(), UtilityOrder(0.5, 0.5), DeadlineOrder(), FairOrder()])
def test_a_row_that_passes_few_layers_is_not_told_to_wait_for_all(order: Order) -> None:
    """As one that students answer."""
    admission = admission_of(order=order)
    for number in range(5):
        admission.admit([Row(f"t{number}", 30, 0, 10**9)], 0)
    row = Row("new", 80, 0, 0, depth=0.1, least_depth=0.1)
    row.deadline_us = round(admission.finish_in_us(row, 0)) + 1
    forecast = WaitForecast.of(admission, 0)
    assert forecast.finish_in_us(row.num_tokens, (row.tenant,), row.deadline_us) <= row.deadline_us
    assert admission.admit([row], 0) is None


@pytest.mark.long
@ORDERS
def test_a_tenant_that_overloads_is_named_and_hardly_ever_rejected_wrongly(order: Order, seed: int) -> None:
    rng = random.Random(seed)
    admission, spare_us, now_us = admission_of(order=order), list[float](), 0
    named, admitted = Counter[str](), Counter[str]()
    for number in range(2_000):
        now_us += rng.randrange(400)
        tenant = "overload" if number % 2 else f"t{number // 2 % 20}"
        job = Row(tenant, rng.randint(1, 60), now_us, now_us + round(1000 * 2 ** rng.uniform(4, 10)))
        forecast, deadline_in_us = WaitForecast.of(admission, now_us), job.deadline_us - now_us
        assert len(forecast.by_tenant) <= MAX_TENANTS
        told_us = forecast.finish_in_us(1, (tenant,), deadline_in_us)
        named[tenant] += told_us > forecast.finish_in_us(1, (), deadline_in_us)
        if admission.admit([job], now_us) is None:
            admitted[tenant] += 1
            spare_us.append(deadline_in_us - told_us)
        if number % 32 == 31:
            run_next_batch(admission, now_us)
    others = admitted.total() - admitted["overload"]
    assert named["overload"] > 400 and admitted["overload"] > 30 and others > 300
    assert named.total() - named["overload"] < 200, named
    assert sum(one < 0 for one in spare_us) <= 0.02 * admitted.total()


def test_a_tenant_beyond_its_share_is_told_what_admission_says() -> None:
    """Others' rows could settle, but not for it."""
    admission = admission_of()
    running = [Row("others", 20, 0) for _ in range(3)]
    for row in running:
        assert admission.admit([row], 0) is None
    run(admission, running, 0)
    for number in range(40):
        for _ in range(4):
            settles = Row(f"t{number}", 20, 0, hplm_key=number + 2, least_depth=0.25)
            assert admission.admit([settles], 0) is None
    for least_depth in [1.0] * 50 + [0.5] * 10:
        assert admission.admit([Row("acme", 20, 0, least_depth=least_depth)], 0) is None
    assert "acme" in admission.beyond_share(0, 1)
    told_us = WaitForecast.of(admission, 0).finish_in_us(1, ["acme"], 10_000_000.0)
    arriving = Row("acme", 1, 0, 10_000_000, least_depth=0.0)
    arriving.settle()
    earliest_us = admission.finish_in_us(arriving, 0, supposed=admission.settling.if_own("acme"))
    assert told_us == pytest.approx(earliest_us, rel=0.01)
    for in_us, is_admitted in ((0.97 * told_us, False), (1.03 * told_us, True)):
        row = Row("acme", 1, 0, round(in_us), least_depth=0.0)
        assert (admission.admit([row], 0) is None) == is_admitted


def test_no_row_waits_for_what_only_the_slower_stack_takes() -> None:
    large = StackKey("large")
    costs = {MINI: LiveCosts(MODEL), large: LiveCosts(CostModel(60_000.0, 200.0, 500.0, 0.0, 30.0))}
    admission: Admission[Row] = Admission(lambda key: costs[key], CAPACITY, AdmissionSettings(), FairOrder())
    for stack in (MINI, large):
        admission.serves(stack)
    row = Row("a", 10, 0, root=large)  # the other one has never run
    assert admission.admit([row], 0) is None
    batch = admission.take_batch([0], 0)
    admission.batches.began(large, BatchShape.of(batch), 0)
    admission.batches.finished(100_000)
    alone_us = WaitForecast.of(admission_of(), 200_000).finish_in_us(1)
    assert 0 < WaitForecast.of(admission, 200_000).finish_in_us(1) <= 1.5 * alone_us


def test_without_predictions_the_forecast_keeps_no_row_out() -> None:
    admission = admission_of(settings=AdmissionSettings(predicts=False))
    assert WaitForecast.of(admission, 0) == WaitForecast.alike(0.0)


def test_a_curve_is_read_between_its_points_and_goes_on_beyond_them() -> None:
    curve = [100.0, 110.0, 130.0, 150.0, 150.0]
    forecast = WaitForecast([100.0, 200.0, 300.0, 400.0, 800.0], [curve] * len(LENGTHS))
    told = {50: 100, 100: 100, 150: 105, 200: 110, 250: 120, 300: 130, 400: 150, 600: 150, 800: 150, 5000: 150}
    assert {us: forecast.finish_in_us(20, (), us) for us in told} == told
    steep = WaitForecast([100.0, 200.0, 300.0, 400.0, 800.0], [[100.0, 110.0, 130.0, 150.0, 950.0]] * len(LENGTHS))
    assert steep.finish_in_us(20, (), 1000.0) == 1350.0


def test_of_rows_that_go_by_deadlines_those_due_later_are_told_to_wait_longer() -> None:
    admission = admission_of(order=DeadlineOrder())
    for now_us in range(0, 400_000, 500):
        row = [Row("one", 30, now_us, now_us + 100_000)]
        if admission.admit(row, now_us) is None and len(admission.waiting) >= 48:
            run_next_batch(admission, now_us)
    forecast = WaitForecast.of(admission, 400_000)
    assert forecast.finish_in_us(20, (), 1_000_000) > 2 * forecast.finish_in_us(20, (), 90_000)


def test_a_model_that_costs_nothing_can_be_told() -> None:
    admission = admission_of(CostModel(0.0, 0.0, 0.0, 0.0, 0.0))
    assert WaitForecast.of(admission, 0).finish_in_us(20, (), 100.0) <= 1.0


def test_threads_read_while_engines_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(wait_forecast, "_LOOK_EVERY_US", 0)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    reader, has_ended = wait_forecast.ForecastReader(), threading.Event()
    errors: list[Exception] = []

    def read() -> None:
        while not has_ended.is_set():
            try:
                reader.finish_us(clock.now_us())
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        ends_at = time.monotonic() + 2
        while time.monotonic() < ends_at:
            for writer in [wait_forecast.ForecastWriter(f"upper {number}") for number in range(4)]:
                writer.close()
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval_s)
        reader.close()
    assert errors == []

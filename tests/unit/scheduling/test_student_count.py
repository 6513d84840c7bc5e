"""How many students run: by the rule alone, and by what waits in front of an engine."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from admitted_rows import CAPACITY, MODEL, Row, admission_of
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.depth_choice import DepthChoice
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.order import DeadlineOrder, FairOrder, LengthOrder, Order
from backends.scheduling.settings import AdmissionSettings
from backends.scheduling.student_count import CALM_US, DRAIN_US, Backlog, StudentCount
from backends.stack_key import STUDENTS, StackKey

KEY = StackKey("mini", STUDENTS, edition="e")
DEPTHS = (0.25, 0.5, 0.75)


def pressures(*of_counts: float) -> dict[int, float]:
    return dict(enumerate(of_counts, start=1))


def test_the_count_goes_down_at_once_to_the_most_that_is_in_time() -> None:
    state = StudentCount.starting(4)
    assert state.next(pressures(0.1, 0.9, 1.1, 1.5).__getitem__, 0) == StudentCount(2, 4)
    assert state.next(pressures(3.0, 4.0, 5.0, 6.0).__getitem__, 0) == StudentCount(1, 4)
    assert state.next(pressures(0.7, 0.8, 0.9, 1.0).__getitem__, 0) == state


def test_it_goes_up_by_one_after_each_calm_second() -> None:
    calm, state, counts = pressures(0.1, 0.2, 0.3).__getitem__, StudentCount(1, 3), []
    for now_us in range(0, 3 * CALM_US, CALM_US // 4):
        state = state.next(calm, now_us)
        counts.append(state.count)
    assert counts == [1] * 4 + [2] * 4 + [3] * 4


def test_a_moment_without_room_begins_the_second_anew() -> None:
    calm, tight = pressures(0.1, 0.5).__getitem__, pressures(0.1, 0.51).__getitem__
    state = StudentCount(1, 2).next(calm, 0).next(tight, CALM_US - 1)
    assert state.next(calm, CALM_US).count == 1
    assert state.next(calm, CALM_US).next(calm, 2 * CALM_US).count == 2


def test_an_idle_engine_was_calm() -> None:
    calm = pressures(0.1, 0.2, 0.3, 0.4).__getitem__
    assert StudentCount(1, 4).next(calm, 10 * CALM_US, idle_since_us=8 * CALM_US - 1).count == 3
    assert StudentCount(1, 4).next(calm, 10 * CALM_US, idle_since_us=10 * CALM_US - 1).count == 1
    assert StudentCount(1, 4).next(pressures(0.1, 0.2, 0.6, 0.7).__getitem__, 10 * CALM_US, idle_since_us=0).count == 2


def random_backlog(rng: np.random.Generator, size: int) -> Backlog:
    first = rng.uniform(1, 100, size)
    return Backlog(
        lambda count: first * count,
        np.cumsum(rng.uniform(0, 10, size)),
        rng.uniform(1, 3000, size),
        margin=float(rng.uniform(1, 1.5)),
    )


@pytest.mark.parametrize("number", range(50))
def test_more_work_never_makes_more_students_run(number: int, seed: int) -> None:
    rng = np.random.default_rng([seed, number])
    backlog = random_backlog(rng, int(rng.integers(1, 40)))
    more_us = rng.uniform(0, 50, len(backlog.time_us))
    more = replace(backlog, work_us=lambda count: backlog.work_us(count) + more_us)
    tighter = replace(backlog, time_us=backlog.time_us * 0.7)
    state = StudentCount(int(rng.integers(1, 6)), 6, None if rng.random() < 0.5 else 0)
    chosen = state.next(backlog.pressure, CALM_US)
    for worse in (more, tighter):
        assert state.next(worse.pressure, CALM_US).count <= chosen.count
    if chosen.count < state.count and chosen.count > 1:  # the most that is in time, by the definition itself
        for count, is_in_time in ((chosen.count, True), (chosen.count + 1, False)):
            waits_us = [sum(backlog.work_us(count)[: row + 1]) for row in range(len(more_us))]
            needs_us = backlog.margin * (np.array(waits_us) + backlog.overhead_us)
            assert bool((needs_us <= backlog.time_us).all()) == is_in_time


def test_a_row_whose_time_is_over_leaves_the_least() -> None:
    backlog = Backlog(lambda count: np.array([float(count)]), np.zeros(1), np.array([-5.0]))
    assert StudentCount.starting(3).next(backlog.pressure, 0).count == 1


@dataclass(eq=False)
class Wish(Row):
    """A row that any number of students up to `most_depth` may answer."""

    root: StackKey = KEY
    depth: float = DEPTHS[0]
    least_depth: float = DEPTHS[0]
    most_depth: float = DEPTHS[-1]


def choice_of(order: Order | None = None, model: CostModel = MODEL) -> tuple[Admission[Row], DepthChoice[Row]]:
    admission = admission_of(LiveCosts(model), AdmissionSettings(margin_percent=0), order=order)
    return admission, DepthChoice(admission)


def chosen(choice: DepthChoice[Row], batch: list[Row], now_us: int = 0) -> list[float]:
    choice.choose(KEY, batch, DEPTHS, now_us)
    return [row.depth for row in batch]


def test_all_students_run_while_nothing_waits() -> None:
    _, choice = choice_of()
    rows: list[Row] = [Wish("a", 10, 0), Wish("a", 10, 0, most_depth=DEPTHS[1]), Wish("a", 10, 0, most_depth=DEPTHS[0])]
    assert chosen(choice, rows) == [*reversed(DEPTHS)]


def test_changes_from_batch_to_batch_are_counted() -> None:
    admission, choice = choice_of()
    figures = admission.batches.figures
    chosen(choice, [Wish("a", 10, 0)])
    assert figures.student_count_changes == 0
    for _ in range(2):
        assert chosen(choice, [Wish("a", 10, 0, deadline_us=2)], now_us=1) == [DEPTHS[0]]
    assert figures.student_count_changes == 1


def test_rows_that_are_late_already_do_not_count() -> None:
    """They are rejected whatever is chosen, so they neither run nor pay."""
    admission, choice = choice_of()
    late = Wish("a", 10, 0, deadline_us=900)
    admission.admit([Wish("b", 10, 0, deadline_us=950)], 0)
    assert chosen(choice, [late, Wish("a", 10, 0)], now_us=1_000) == [DEPTHS[0], DEPTHS[-1]]


def test_rows_that_name_their_number_keep_it() -> None:
    admission, choice = choice_of()
    admission.admit([Wish("b", 900, 0) for _ in range(50)], 0)
    named = Wish("a", 10, 0, depth=DEPTHS[1], least_depth=DEPTHS[1], most_depth=DEPTHS[1])
    assert chosen(choice, [named]) == [DEPTHS[1]]
    assert chosen(choice, [Wish("a", 10, 0), named]) == [DEPTHS[0], DEPTHS[1]]


def test_tenants_pay_for_the_students_that_run() -> None:
    admission, choice = choice_of()
    row = Wish("a", 100, 0)
    admission.admit([row, Wish("a", 1, 0)], 0)
    admission.take_batch([0], 0)
    before_us = admission.accounts.shares._ends_us.get("a", 0.0)
    chosen(choice, [row])
    assert admission.accounts.shares._ends_us.get("a", 0.0) - before_us == pytest.approx(
        MODEL.row_us(100, DEPTHS[-1]) - MODEL.row_us(100, DEPTHS[0])
    )


def slow_count(batch: list[Row], waiting: list[Row], now_us: int, model: CostModel) -> int:
    """The most students with which each row is answered in time, counted row by row in the order of the queue."""

    def is_in_time(depth: float) -> bool:
        def within(row: Row) -> float:
            return min(max(depth, row.least_depth), row.most_depth)

        done_us = model.predict_us(BatchShape.of(batch, [within(row) for row in batch]))
        in_time = all(done_us <= (DRAIN_US if row.deadline_us is None else row.deadline_us - now_us) for row in batch)
        tokens, work_us, keys = 0, 0.0, {row.hplm_key for row in waiting}
        per_batch = []
        for count, row in enumerate(waiting, start=1):
            tokens += row.num_tokens
            work_us += model.row_us(row.num_tokens, within(row) if row.root == KEY else row.depth)
            batches = int(np.ceil(max(count / CAPACITY.max_rows, tokens / CAPACITY.max_tokens)))
            per_batch.append((count, batches, work_us, row))
        for _, batches, work_us, row in per_batch:
            rows = len(waiting) / per_batch[-1][1]
            distinct = max(1.0, len(keys) * (1.0 - np.exp(-rows / len(keys))))
            need_us = done_us + work_us + batches * (model.constant_us + model.per_adapter_us * distinct)
            in_time &= need_us <= (DRAIN_US if row.deadline_us is None else row.deadline_us - now_us)
        return in_time

    return next((count for count in (3, 2) if is_in_time(DEPTHS[count - 1])), 1)


@pytest.mark.parametrize("number", range(40))
@pytest.mark.parametrize("order", [FairOrder(), DeadlineOrder(), LengthOrder()], ids=lambda order: type(order).__name__)
def test_the_choice_equals_counting_row_by_row(number: int, order: Order, seed: int) -> None:
    chance = random.Random(f"{seed} {number}")
    admission, choice = choice_of(order)

    def random_row() -> Row:
        deadline_us = chance.choice([None, chance.randint(30_000, 400_000)])
        kind = Row if chance.random() < 0.3 else Wish
        return kind("a", chance.randint(1, 100), 0, deadline_us, chance.randint(1, 5))

    batch: list[Row] = [Wish("a", chance.randint(1, 100), 0, None) for _ in range(chance.randint(1, 8))]
    for _ in range(chance.randint(0, 30)):
        admission.put_back([random_row()], 0)
    waiting = list(admission.waiting)
    if order.goes_by_length:
        waiting.sort(key=lambda row: row.num_tokens)
    elif not isinstance(order, FairOrder):
        waiting.sort(key=lambda row: float("inf") if row.deadline_us is None else row.deadline_us)
    count = slow_count(batch, waiting, 0, MODEL)
    assert set(chosen(choice, batch)) == {DEPTHS[count - 1]}


def test_admission_promises_with_the_least_number_and_the_choice_keeps_it() -> None:
    """A row that can be on time with one student only is admitted, and the batch before it runs with one."""
    admission, choice = choice_of(FairOrder())
    first = [Wish("a", 100, 0) for _ in range(8)]
    one_us = MODEL.predict_us(BatchShape.of(first, [DEPTHS[0]] * 8))
    three_us = MODEL.predict_us(BatchShape.of(first, [DEPTHS[2]] * 8))
    admission.admit(first, 0)
    admission.take_batch(range(8), 0)
    admission.batches.staged(BatchShape.of(first), KEY)
    alone_us = MODEL.predict_us(BatchShape(1, 100 * DEPTHS[0], 10_000 * DEPTHS[0], 1))
    late = Wish("b", 100, 0, deadline_us=int(one_us + alone_us + 1_000), hplm_key=2)
    assert three_us + alone_us > one_us + alone_us + 1_000
    assert admission.admit([late], 0) is None
    assert set(chosen(choice, list(first))) == {DEPTHS[0]}
    admission.batches.began(KEY, BatchShape.of(first), 0)
    admission.take_batch([0], int(one_us))
    assert chosen(choice, [late], int(one_us)) == [DEPTHS[0]]

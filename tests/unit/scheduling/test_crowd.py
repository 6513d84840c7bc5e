"""When requests come as fast as they are answered, and what is promised to the first of them then."""

from __future__ import annotations

import pytest

from admitted_rows import MODEL, Row, admission_of
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.crowd import Crowd
from backends.scheduling.live_costs import LiveCosts

SHAPE = BatchShape(rows=16, tokens=320, squared_lengths=6_400, adapters=16)


@pytest.mark.parametrize(
    ("came", "waiting", "is_here"), [(8, 8, True), (7, 100, False), (100, 7, False), (0, 64, False)]
)
def test_a_crowd_comes_and_waits(came: int, waiting: int, is_here: bool) -> None:
    crowd = Crowd()
    for _ in range(came):
        crowd.come(1, batch_rows=16, waiting=waiting)
    assert crowd.is_here == is_here
    crowd.end_batch(16, waiting)
    assert crowd.is_here == is_here
    crowd.end_batch(16, waiting)
    assert not crowd.is_here, "nobody came during the next batch"


def test_one_row_behind_another_is_no_crowd() -> None:
    crowd = Crowd()
    crowd.come(1, batch_rows=1, waiting=1)
    assert not crowd.is_here
    crowd.end_batch(1, 1)
    assert not crowd.is_here


def test_batches_in_a_crowd_and_others_are_corrected_apart() -> None:
    costs = LiveCosts(MODEL)
    profiled_us = MODEL.predict_us(SHAPE)
    for _ in range(20):
        costs.observe(SHAPE, profiled_us)
    costs.expect(True)
    assert costs.predict_us(SHAPE) == pytest.approx(profiled_us), "no other crowd is known"
    for _ in range(20):
        costs.observe(SHAPE, 2.5 * profiled_us)
    assert costs.predict_us(SHAPE) == pytest.approx(2.5 * profiled_us)
    costs.expect(False)
    assert costs.predict_us(SHAPE) == pytest.approx(profiled_us)
    for _ in range(100):
        costs.observe(SHAPE, 1.1 * profiled_us)
    costs.expect(True)
    assert costs.predict_us(SHAPE) == pytest.approx(2.5 * profiled_us)


def test_where_only_crowds_are_known_what_they_have_shown_counts_for_all() -> None:
    costs = LiveCosts(MODEL)
    costs.expect(True)
    for _ in range(20):
        costs.observe(SHAPE, 2.0 * MODEL.predict_us(SHAPE))
    costs.expect(False)
    assert costs.predict_us(SHAPE) == pytest.approx(2.0 * MODEL.predict_us(SHAPE))


def test_the_second_flood_is_promised_by_what_the_first_has_shown() -> None:
    """Batches take twice as long while requests come; in between the server is as fast as it was profiled."""
    costs = LiveCosts(MODEL)
    admission = admission_of(costs)
    profiled_us, now_us = MODEL.predict_us(SHAPE), 0

    def run(batches: int, coming: int) -> None:
        nonlocal now_us
        for _ in range(batches):
            rows = [Row(f"t{number}", 20, now_us) for number in range(16)]
            assert admission.admit(rows, now_us) is None
            admission.take(rows, now_us)
            admission.began("mini", SHAPE, now_us)
            others = [Row(f"t{number}", 20, now_us) for number in range(coming)]
            assert not others or admission.admit(others, now_us) is None
            now_us += round((2.0 if coming else 1.0) * profiled_us)
            admission.finished(now_us)
            admission.withdraw(others)

    run(12, coming=0)
    run(12, coming=40)
    run(40, coming=0)
    assert costs.predict_us(SHAPE) == pytest.approx(profiled_us, rel=0.05)
    admission.began("mini", SHAPE, now_us)
    for _ in range(40):
        admission.admit([Row("flood", 20, now_us)], now_us)
    assert costs.predict_us(SHAPE) == pytest.approx(2.0 * profiled_us, rel=0.05)

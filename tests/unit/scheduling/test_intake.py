"""How long requests are on their way."""

from __future__ import annotations

import pytest

from backends.scheduling.intake import Intake


def test_the_least_of_the_latest_counts() -> None:
    intake = Intake()
    assert intake.least_us(0) == 0
    for number in range(20):
        intake.note(read_us=1000 * number, now_us=1000 * number + 300 + number)
    assert intake.least_us(20_000) == 304, "of the latest sixteen"


def test_what_came_long_ago_says_nothing() -> None:
    intake = Intake()
    intake.note(read_us=0, now_us=700)
    intake.note(read_us=0, now_us=500_000)
    assert intake.least_us(1_000_000) == 700
    assert intake.least_us(1_000_700) == 500_000
    assert intake.least_us(1_500_000) == 0


def test_whoever_says_to_have_been_read_later_than_now_has_come_at_once() -> None:
    intake = Intake()
    intake.note(read_us=2000, now_us=1000)
    assert intake.least_us(1000) == 0


@pytest.mark.parametrize(("on_the_way_us", "counted_us"), [(0, 0), (200_000, 200_000), (300_000, 700_000)])
def test_a_queue_that_stands_in_front_of_the_engine_counts_several_times(on_the_way_us: int, counted_us: int) -> None:
    intake = Intake()
    intake.note(read_us=0, now_us=on_the_way_us)
    assert intake.counted_us(on_the_way_us) == counted_us

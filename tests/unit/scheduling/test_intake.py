"""How long requests are on their way."""

from __future__ import annotations

from backends.scheduling.intake import Intake


def test_the_least_of_the_latest_counts() -> None:
    intake = Intake()
    assert intake.least_us == 0
    for number in range(20):
        intake.note(read_us=1000 * number, now_us=1000 * number + 300 + number)
    assert intake.least_us == 304, "of the latest sixteen"
    intake.forget()
    assert intake.least_us == 0


def test_whoever_says_to_have_been_read_later_than_now_has_come_at_once() -> None:
    intake = Intake()
    intake.note(read_us=2000, now_us=1000)
    assert intake.least_us == 0

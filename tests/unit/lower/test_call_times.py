"""When the requests of a call are due, where it is not known since when they have waited."""

from __future__ import annotations

from backends.lower.call_times import CallTimes


def test_a_request_of_a_call_right_after_another_counts_from_the_middle_of_the_other() -> None:
    times = CallTimes()
    times.begin(1_000)
    assert times.deadline_us(200_000) == 201_000, "the first call"
    times.end(50_000)
    times.begin(51_000)
    assert times.deadline_us(200_000) == 251_000 - 25_000
    times.end(60_000)
    times.begin(64_000)
    assert times.deadline_us(200_000) == 264_000 - 6_500


def test_a_call_after_a_pause_holds_what_arrives_with_it() -> None:
    times = CallTimes()
    times.begin(1_000)
    times.end(2_000)
    times.begin(10_000)
    assert times.deadline_us(20_000) == 30_000


def test_a_deadline_shorter_than_a_call_can_be_met() -> None:
    """A request that arrives at the end of a call of 25 ms, with 20 ms left, has hardly waited."""
    times = CallTimes()
    times.begin(0)
    times.end(25_000)
    times.begin(25_000)
    assert times.deadline_us(20_000) == 25_000 + 10_000

"""Since when the requests of a call have waited at most."""

from __future__ import annotations

from backends.lower.call_times import CallTimes


def test_a_call_that_begins_at_once_after_another_holds_what_came_during_it() -> None:
    times = CallTimes()
    assert times.begin(1_000) == 1_000, "the first one"
    times.end(50_000)
    assert times.begin(50_400) == 1_000
    times.end(60_000)
    assert times.begin(64_000) == 50_400


def test_a_call_after_a_pause_holds_what_comes_with_it() -> None:
    times = CallTimes()
    times.begin(1_000)
    times.end(2_000)
    assert times.begin(10_000) == 10_000

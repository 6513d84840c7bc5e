from __future__ import annotations

from backends.lower.recent_times import RecentTimes


def usual_us(*times_us: float) -> float:
    recent = RecentTimes()
    for time_us in times_us:
        recent.note(time_us)
    return recent.usual_us


def test_a_slow_time_among_quick_ones_says_nothing() -> None:
    assert usual_us() == 0.0
    assert usual_us(20e6) == 0.0
    assert usual_us(20e6, 500.0, 700.0) == 500.0
    assert usual_us(*[500.0] * 6, 20e6, 700.0) == 500.0


def test_times_that_stay_slow_are_seen() -> None:
    assert usual_us(*[500.0] * 8, *[9000.0] * 5) == 9000.0

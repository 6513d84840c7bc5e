"""How long a restart waits, and when there is no further one."""

from __future__ import annotations

import pytest

from builder.serving.errors import ServerStartError
from builder.serving.restarts import Restarts


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_short_lives_wait_longer_and_a_long_one_begins_anew() -> None:
    clock = Clock()
    restarts = Restarts(most=100, clock=clock)
    delays = []
    for life_s in (60.0, 1.0, 2.0, 1.0, 5.0, 1.0):
        restarts.note_ready()
        clock.now_s += life_s
        delays.append(restarts.next_delay_s("it died"))
    assert delays == [0, 0, 1, 2, 0, 0]


def test_restarts_that_fail_wait_for_half_a_minute_at_most() -> None:
    restarts = Restarts(most=5000)
    delays = [restarts.next_delay_s("the restart failed") for _ in range(2000)]
    assert delays[:9] == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert delays[-1] == 30


def test_the_sixth_within_ten_minutes_is_an_error() -> None:
    clock = Clock()
    restarts = Restarts(clock=clock)
    for _ in range(5):
        restarts.note_ready()
        clock.now_s += 100
        restarts.next_delay_s("it died")
    assert restarts.count == "restart 5 of at most 5 within 10 minutes"
    with pytest.raises(ServerStartError, match="it died; it was restarted 5 times within 10 minutes and is given up"):
        restarts.next_delay_s("it died")
    clock.now_s += 201
    assert restarts.next_delay_s("it died") == 0, "the first one is longer ago"


def test_servers_that_never_live_are_given_up_however_long_they_take_to_start() -> None:
    """Ten minutes hold one of them only."""
    clock = Clock()
    restarts = Restarts(clock=clock)
    for _ in range(5):
        clock.now_s += 620
        restarts.next_delay_s("the restart failed")
    clock.now_s += 620
    with pytest.raises(ServerStartError, match="restarted 5 times in a row and never lived for 3 s and is given up"):
        restarts.next_delay_s("the restart failed")
    restarts.note_ready()
    clock.now_s += 2
    restarts.note_ready()
    clock.now_s += 2
    assert restarts.next_delay_s("it died") == 0, "it has lived, since it was ready first"


def test_a_server_that_ran_for_hours_was_no_restart_in_vain() -> None:
    """Though something was wrong with it all the time, as while the registry is away."""
    clock = Clock()
    restarts = Restarts(clock=clock)
    for _ in range(12):
        restarts.note_loaded()
        clock.now_s += 7200
        restarts.next_delay_s("it died")


def test_without_restarts_the_reason_is_the_error() -> None:
    with pytest.raises(ServerStartError, match=r"^tritonserver died$"):
        Restarts(most=0).next_delay_s("tritonserver died")

"""Whoever refuses a request does not wait until its caller has been told."""

from __future__ import annotations

import threading

import pytest

from backends.engine.telling import Telling
from backends.errors import HplmError, InvalidArgumentError


def test_a_caller_that_takes_long_holds_up_nobody_who_refuses() -> None:
    telling = Telling()
    may_go = threading.Event()
    told: list[str] = []

    def tell(error: HplmError) -> None:
        may_go.wait(30)
        told.append(str(error))

    for number in range(5):
        telling.tell(tell, InvalidArgumentError(f"no {number}"))
    assert not told
    may_go.set()
    telling.close()
    assert told == [f"no {number}" for number in range(5)], "all of them, in order, before it is closed"


def test_a_caller_that_cannot_be_told_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    telling = Telling()
    told: list[HplmError] = []

    def fail(error: HplmError) -> None:
        raise OSError("gone")

    telling.tell(fail, InvalidArgumentError("wrong"))
    telling.tell(told.append, InvalidArgumentError("wrong too"))
    telling.close()
    assert [str(error) for error in told] == ["wrong too"]
    assert "a caller could not be told: wrong" in caplog.text


def test_after_the_end_callers_are_told_at_once() -> None:
    telling = Telling()
    telling.close()
    told: list[HplmError] = []
    telling.tell(told.append, InvalidArgumentError("late"))
    assert len(told) == 1

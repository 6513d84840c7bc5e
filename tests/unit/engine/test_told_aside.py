"""Whoever refuses a request does not wait until its caller has been told."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from backends.clock import now_us
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings
from backends.engine.telling import Telling
from backends.errors import HplmError, InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.policy import Capacity
from backends.wire import Ticket, encode_tickets, fold_rows


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


def test_where_too_many_are_untold_whoever_refuses_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.engine.telling._MOST_UNTOLD", 2)
    telling = Telling()
    may_go, begun = threading.Event(), threading.Event()
    told: list[str] = []

    def slow(error: HplmError) -> None:
        begun.set()
        may_go.wait(30)
        told.append(str(error))

    telling.tell(slow, InvalidArgumentError("first"))
    assert begun.wait(30)
    for number in range(4):
        telling.tell(lambda error: told.append(str(error)), InvalidArgumentError(f"no {number}"))
    assert told == ["no 2", "no 3"]
    may_go.set()
    telling.close()
    assert told[2:] == ["first", "no 0", "no 1"]


def test_a_refused_request_does_not_hold_up_whoever_brings_it(tiny_home: Home) -> None:
    """Its caller takes long to be told, and has been told when the service is closed."""
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    service = UpperService(tiny_home, snapshot, StackSettings(dtype="fp32", num_slots=4), Capacity(max_rows=2))
    may_go, told = threading.Event(), list[object]()

    def respond(answers: object) -> None:
        may_go.wait(30)
        told.append(answers)

    tickets = encode_tickets([Ticket(snapshot.live()[0].key, 5, False, deadline_us=now_us() - 1)])
    service.submit(fold_rows([np.zeros((5, 64), np.float16)]), tickets, [b""], respond)
    assert not told
    may_go.set()
    service.close()
    snapshot.close()
    assert isinstance(told[0], HplmError) and len(told) == 1


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

"""The thread that rejects a request, or has an answer, does not wait until it is sent."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from backends.clock import now_us
from backends.engine.senders import Senders
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings
from backends.errors import HplmError, InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import Capacity
from backends.wire import Ticket, encode_tickets, fold_rows


def test_a_slow_caller_does_not_delay_the_rejecting_thread() -> None:
    sender = Senders[HplmError]()
    may_go = threading.Event()
    sent: list[str] = []

    def respond(error: HplmError) -> None:
        may_go.wait(30)
        sent.append(str(error))

    for number in range(5):
        sender.send(respond, InvalidArgumentError(f"no {number}"))
    assert not sent
    may_go.set()
    sender.close()
    assert sent == [f"no {number}" for number in range(5)], "all of them, in order, before it is closed"


def test_beyond_the_limit_the_rejecting_thread_sends_itself() -> None:
    sender = Senders[HplmError](most_unsent=2)
    may_go, begun = threading.Event(), threading.Event()
    sent: list[str] = []

    def slow(error: HplmError) -> None:
        begun.set()
        may_go.wait(30)
        sent.append(str(error))

    sender.send(slow, InvalidArgumentError("first"))
    assert begun.wait(30)
    for number in range(4):
        sender.send(lambda error: sent.append(str(error)), InvalidArgumentError(f"no {number}"))
    assert sent == ["no 2", "no 3"]
    may_go.set()
    sender.close()
    assert sent[2:] == ["first", "no 0", "no 1"]


def test_as_many_are_sent_at_once_as_there_are_threads() -> None:
    senders = Senders[int](3)
    together, sent = threading.Barrier(3), list[int]()

    def respond(answer: int) -> None:
        together.wait(30)  # fewer would wait for ever
        sent.append(answer)

    for number in range(6):
        senders.send(respond, number)
    senders.close()
    assert sorted(sent) == list(range(6)), "all of them, before they are closed"


def test_a_rejected_request_does_not_delay_the_submitting_thread(tiny_home: Home) -> None:
    """The error takes long to send, and is sent before `close` returns."""
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    service = UpperService(tiny_home, snapshot, StackSettings(dtype="fp32", num_slots=4), Capacity(max_rows=2))
    may_go, sent = threading.Event(), list[object]()

    def respond(answers: object) -> None:
        may_go.wait(30)
        sent.append(answers)

    tickets = encode_tickets([Ticket(snapshot.live()[0].key, 5, False, deadline_us=now_us() - 1)])
    service.submit(fold_rows([np.zeros((5, 64), np.float16)]), tickets, [b""], respond)
    assert not sent
    may_go.set()
    service.close()
    snapshot.close()
    assert isinstance(sent[0], HplmError) and len(sent) == 1


def test_an_error_that_cannot_be_sent_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sender = Senders[HplmError]()
    sent: list[HplmError] = []

    def fail(error: HplmError) -> None:
        raise OSError("gone")

    sender.send(fail, InvalidArgumentError("wrong"))
    sender.send(sent.append, InvalidArgumentError("wrong too"))
    sender.close()
    assert [str(error) for error in sent] == ["wrong too"]
    assert "an answer could not be sent: wrong" in caplog.text


def test_after_close_errors_are_sent_at_once() -> None:
    sender = Senders[HplmError]()
    sender.close()
    sent: list[HplmError] = []
    sender.send(sent.append, InvalidArgumentError("late"))
    assert len(sent) == 1

"""Answers on their way to callers delay neither each other nor errors, and one that hangs is noticed."""

from __future__ import annotations

import json
import queue
import threading

import numpy as np
import pytest

from backends.engine.loop import ANSWER, LOOPS
from backends.engine.outbox import Outbox
from backends.engine.senders import Senders
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.wire import Ticket, encode_tickets, fold_rows
from served_engine import keys_of, running
from waiting import wait_until


def test_a_slow_caller_delays_neither_other_answers_nor_errors(tiny_home: Home) -> None:
    """All is sent before the service is closed."""
    key = next(iter(keys_of(tiny_home).values()))
    may_go, sent = threading.Event(), queue.Queue[object]()

    def slow(answers: object) -> None:
        may_go.wait(30)
        sent.put("slow")

    with running(tiny_home) as service:
        hidden = fold_rows([np.zeros((5, 64), np.float16)])
        service.submit(hidden, encode_tickets([Ticket(key, 5, False, None)]), [b""], slow)
        for length in (5, 4):  # the second one's length is not the rows'
            service.submit(hidden, encode_tickets([Ticket(key, length, False, None)]), [b""], sent.put)
        first, second = sent.get(timeout=30), sent.get(timeout=30)
        assert {isinstance(first, list), isinstance(second, list)} == {True, False}
        (answer,) = first if isinstance(first, list) else second  # type: ignore[misc]
        assert json.loads(answer)["scores"]
        may_go.set()
    assert sent.get_nowait() == "slow"


def test_while_a_sending_hangs_the_answering_loop_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.engine.senders.STUCK_US", 1_000)
    beats: list[str] = []
    outbox, may_go = Outbox(8), threading.Event()
    beat_of = outbox.watched(lambda loop: lambda: beats.append(loop))
    for loop in LOOPS:
        beat_of(loop)()
    assert beats == list(LOOPS)
    outbox.send(lambda _: may_go.wait(30) and None, [])
    wait_until(lambda: outbox._answers.are_stuck())
    beats.clear()
    for loop in LOOPS:
        beat_of(loop)()
    assert beats == [loop for loop in LOOPS if loop != ANSWER]
    outbox.close(timeout_s=0.1)  # does not wait for what hangs
    may_go.set()
    outbox.close()
    beat_of(ANSWER)()
    assert beats[-1] == ANSWER


def test_the_answering_thread_gets_no_further_ahead_than_is_allowed() -> None:
    outbox, may_go, begun = Outbox(2), threading.Event(), threading.Semaphore(0)
    sent: list[int] = []

    def slow(_: object) -> None:
        begun.release()
        may_go.wait(30)

    for _ in range(4):
        outbox.send(slow, [])
    assert all(begun.acquire(timeout=30) for _ in range(4))
    for number in range(3):
        outbox.send(lambda _, number=number: sent.append(number), [])  # type: ignore[misc]
    assert sent == [2], "four are being sent, two wait"
    may_go.set()
    outbox.close()
    assert sorted(sent) == [0, 1, 2]


def test_what_a_caller_was_to_get_stays_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    senders = Senders[object]()

    def fail(_: object) -> None:
        raise OSError("gone")

    senders.send(fail, [b"a secret"])
    senders.send(fail, InvalidArgumentError("wrong"))
    senders.close()
    assert "secret" not in caplog.text and "wrong" in caplog.text

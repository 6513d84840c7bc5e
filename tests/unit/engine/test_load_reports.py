"""What the serve loop reports to `hplm_lower`, and how many threads it computes with."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from backends.clock import now_us
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.rejection import RejectedError
from backends.scheduling.settings import Capacity
from backends.scheduling.wait_forecast import LENGTHS, WaitForecast
from backends.wire import Ticket, encode_tickets, fold_rows
from served_engine import hold_runs
from waiting import wait_until

HIDDEN = 64
Told = list[tuple[WaitForecast, int, int]]


@contextmanager
def running(home: Home, told: Told | None = None) -> Iterator[Any]:
    """A function that asks one row and waits for its answer; `told` gets what the loop says, and how many waited."""
    snapshot = RegistrySnapshot(Registry.open(home))
    key = snapshot.find("acme/topic").key

    def tell(forecast: WaitForecast, at_us: int) -> None:
        if told is not None:
            told.append((forecast, at_us, len(service._loop._queue.waiting)))

    service = UpperService(
        home, snapshot, StackSettings(dtype="fp32", num_slots=4), Capacity(max_rows=2), on_forecast=tell
    )

    def ask(count: int = 1, deadline_ms: int | None = None) -> list[Any]:
        answers: queue.Queue[Any] = queue.Queue()
        deadline_us = None if deadline_ms is None else now_us() + 1000 * deadline_ms
        rows = [np.zeros((5, HIDDEN), np.float16)]
        for _ in range(count):
            tickets = encode_tickets([Ticket(key, 5, False, deadline_us)])
            service.submit(fold_rows(rows), tickets, [b""], answers.put)
        return [answers.get(timeout=30) for _ in range(count)]

    try:
        yield ask
    finally:
        service.close()
        snapshot.close()


def test_an_engine_that_has_nothing_left_to_do_says_so(built_home: Home) -> None:
    told: Told = []
    with running(built_home, told=told) as ask:
        for _ in range(5):
            before_us = now_us()
            ask()
            # On a slow machine the request itself was told of too.
            wait_until(lambda before_us=before_us: told and told[-1][1] > before_us and not told[-1][2])  # type: ignore[misc]
            assert len(told[-1][0].by_length) == len(LENGTHS)


def test_a_forecast_that_cannot_be_told_costs_no_answer(built_home: Home, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(list[Any]):
        def append(self, told: Any) -> None:
            raise OSError("the file is gone")

    with running(built_home, told=Failing()) as ask:
        assert all(isinstance(answer, list) for answer in ask(5))
        assert all(isinstance(answer, list) for answer in ask(5))
    assert "could not be told" in caplog.text


def test_a_busy_engine_tells_now_and_then(built_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with each of its batches, nor with each request that comes: telling takes half a millisecond."""
    run = UpperStack.run

    def slow(*arguments: Any) -> Any:
        time.sleep(0.005)
        return run(*arguments)

    monkeypatch.setattr(UpperStack, "run", slow)
    told: Told = []
    with running(built_home, told=told) as ask:
        began_us = now_us()
        ask(300)
        took_us = now_us() - began_us
        busy = [at_us for _, at_us, waiting in told if waiting]
    assert 3 <= len(busy) <= took_us / 100_000 + 1
    assert all(later - earlier >= 100_000 for earlier, later in itertools.pairwise(busy))


def test_an_engine_that_rejects_all_rows_tells_on(built_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun = hold_runs(monkeypatch)
    told: Told = []
    with running(built_home, told=told) as ask:
        first = threading.Thread(target=ask)
        first.start()
        begun.get(timeout=30)
        before = len(told)

        def tells_on() -> bool:
            assert all(isinstance(answer, RejectedError) for answer in ask(deadline_ms=1))
            return len(told) - before >= 2

        wait_until(tells_on)
        go.set()
        first.join()

"""The batching delay of `execute`: while a batch runs, and over before the next one is chosen."""

from __future__ import annotations

import threading
import time

import pytest

from backends.engine import loop
from backends.engine.service import UpperService
from backends.home import Home
from backends.scheduling.batch_clock import BatchClock
from backends.scheduling.settings import Capacity
from served_engine import ask, hold_runs, keys_of, running


def delayed(service: UpperService) -> threading.Thread:
    thread = threading.Thread(target=service.delay_for_batching, daemon=True)
    thread.start()
    return thread


def test_the_delay_lasts_while_a_batch_is_staged(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_BATCHING_DELAY_S", 600.0)
    go, begun = hold_runs(monkeypatch)
    key = keys_of(tiny_home)["acme/topic"]
    with running(tiny_home, capacity=Capacity(max_rows=2)) as service:
        service.delay_for_batching()
        pending = [ask(service, [key])]
        begun.get(timeout=30)
        for _ in range(3):
            service.delay_for_batching()
            pending.append(ask(service, [key]))
        pending.append(ask(service, [key]))
        while service._loop._staged is None:
            time.sleep(0.001)
        waiting = delayed(service)
        waiting.join(0.05)
        assert waiting.is_alive()
        go.set()
        waiting.join(30)
        assert not waiting.is_alive()
        assert all(isinstance(one.get(timeout=30), list) for one in pending)


@pytest.mark.parametrize(("left_us", "is_delayed"), [(600e6, True), (5_000.0, False), (0.0, False)])
def test_the_delay_lasts_while_a_batch_has_time_left(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, left_us: float, is_delayed: bool
) -> None:
    monkeypatch.setattr(loop, "_BATCHING_DELAY_S", 600.0)
    monkeypatch.setattr(BatchClock, "left_us", lambda *_: left_us)
    go, begun = hold_runs(monkeypatch)
    key = keys_of(tiny_home)["acme/topic"]
    with running(tiny_home, capacity=Capacity(max_rows=2)) as service:
        delayed(service).join(30)  # nothing runs
        pending = ask(service, [key])
        begun.get(timeout=30)
        behind = delayed(service)
        behind.join(0.05 if is_delayed else 30)
        assert behind.is_alive() == is_delayed
        go.set()
        behind.join(30)
        assert not behind.is_alive()
        assert isinstance(pending.get(timeout=30), list)


def test_an_engine_that_stops_ends_the_delay(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_BATCHING_DELAY_S", 600.0)
    go, begun = hold_runs(monkeypatch)
    key = keys_of(tiny_home)["acme/topic"]
    with running(tiny_home, capacity=Capacity(max_rows=1)) as service:
        pending = [ask(service, [key])]
        begun.get(timeout=30)
        pending += [ask(service, [key]) for _ in range(3)]
        while service._loop._staged is None:
            time.sleep(0.001)
        waiting = delayed(service)
        closing = threading.Thread(target=service.close)
        closing.start()
        waiting.join(30)
        assert not waiting.is_alive()
        go.set()
        closing.join(30)

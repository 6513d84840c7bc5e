"""Whoever brings requests waits for a moment while a batch runs, and is there before the next one is chosen."""

from __future__ import annotations

import threading
import time

import pytest

from backends.engine import loop
from backends.engine.service import UpperService
from backends.home import Home
from backends.scheduling.admission import Admission
from backends.scheduling.policy import Capacity
from served_engine import ask, hold_runs, keys_of, running


def lingering(service: UpperService) -> threading.Thread:
    thread = threading.Thread(target=service.delay_for_batching, daemon=True)
    thread.start()
    return thread


def test_it_lingers_behind_a_staged_batch(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
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
        crowded = lingering(service)
        crowded.join(0.05)
        assert crowded.is_alive()
        go.set()
        crowded.join(30)
        assert not crowded.is_alive()
        assert all(isinstance(one.get(timeout=30), list) for one in pending)


@pytest.mark.parametrize(("left_us", "lingers"), [(600e6, True), (5_000.0, False), (0.0, False)])
def test_it_lingers_while_a_batch_has_a_while_left(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, left_us: float, lingers: bool
) -> None:
    monkeypatch.setattr(loop, "_BATCHING_DELAY_S", 600.0)
    monkeypatch.setattr(Admission, "left_us", lambda *_: left_us)
    go, begun = hold_runs(monkeypatch)
    key = keys_of(tiny_home)["acme/topic"]
    with running(tiny_home, capacity=Capacity(max_rows=2)) as service:
        lingering(service).join(30)  # nothing runs
        pending = ask(service, [key])
        begun.get(timeout=30)
        behind = lingering(service)
        behind.join(0.05 if lingers else 30)
        assert behind.is_alive() == lingers
        go.set()
        behind.join(30)
        assert not behind.is_alive()
        assert isinstance(pending.get(timeout=30), list)


def test_nobody_lingers_at_an_engine_that_stops(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_BATCHING_DELAY_S", 600.0)
    go, begun = hold_runs(monkeypatch)
    key = keys_of(tiny_home)["acme/topic"]
    with running(tiny_home, capacity=Capacity(max_rows=1)) as service:
        pending = [ask(service, [key])]
        begun.get(timeout=30)
        pending += [ask(service, [key]) for _ in range(3)]
        while service._loop._staged is None:
            time.sleep(0.001)
        crowded = lingering(service)
        closing = threading.Thread(target=service.close)
        closing.start()
        crowded.join(30)
        assert not crowded.is_alive()
        go.set()
        closing.join(30)

"""Whoever brings requests waits for a moment where so much waits that nothing new would run next."""

from __future__ import annotations

import threading
import time

import pytest

from backends.engine import loop
from backends.engine.service import UpperService
from backends.home import Home
from backends.scheduling.policy import Capacity
from served_engine import ask, hold_runs, keys_of, running


def lingering(service: UpperService) -> threading.Thread:
    thread = threading.Thread(target=service.linger, daemon=True)
    thread.start()
    return thread


def test_it_lingers_only_behind_a_staged_batch_and_a_full_one(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_LINGER_S", 600.0)
    go, begun = hold_runs(monkeypatch)
    key = keys_of(tiny_home)["acme/topic"]
    with running(tiny_home, capacity=Capacity(max_rows=2)) as service:
        service.linger()
        pending = [ask(service, [key])]
        begun.get(timeout=30)
        for _ in range(3):
            service.linger()
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


def test_nobody_lingers_at_an_engine_that_stops(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_LINGER_S", 600.0)
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

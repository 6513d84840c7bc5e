"""What is remembered of hPLMs that have failed."""

from __future__ import annotations

import pytest

from backends.engine import quarantine
from backends.engine.quarantine import Quarantine
from backends.errors import HplmError
from backends.home import Home
from backends.scheduling.settings import Capacity
from served_engine import ask, hold_runs, keys_of, running
from waiting import wait_until


def test_an_error_is_forgotten_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(quarantine.time, "monotonic", lambda: now_s)
    kept = Quarantine()
    kept.add(7, HplmError("it fails"))
    assert str(kept.error(7)) == "it fails" and kept.error(8) is None
    now_s = 131.0
    assert kept.error(7) is None
    assert not kept._by_key


def test_rows_that_wait_when_their_hplm_fails_are_told_so_and_kept_by_nothing(
    built_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(built_home)
    good, bad = keys["acme/topic"], keys["acme/mood"]
    go, begun = hold_runs(monkeypatch)
    error = HplmError("it fails")
    with running(built_home, num_slots=4, capacity=Capacity(max_rows=2, max_adapters=3)) as service:
        runs = ask(service, [good])
        assert begun.get(timeout=30) == 1
        staged = [ask(service, [good]) for _ in range(2)]
        wait_until(lambda: len(service.admission.waiting) == 0)
        waits = [ask(service, [bad]) for _ in range(6)]
        wait_until(lambda: len(service.admission.waiting) == 6)
        service._loop.quarantine.add(bad, error)
        go.set()
        assert all(isinstance(each.get(timeout=30), list) for each in [runs, *staged])
        assert all(str(each.get(timeout=30)) == "it fails" for each in waits)
    assert error.__traceback__ is None, "it would hold the rows of all batches that it was raised in"

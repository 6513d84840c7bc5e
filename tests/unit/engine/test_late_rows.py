"""Rows that become late while they wait, run, or are staged: what they are told, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from backends.clock import now_us
from backends.engine import answering
from backends.errors import UnavailableError
from backends.home import Home
from backends.scheduling.admission import Admission
from backends.scheduling.settings import Capacity
from marked_engine import Responses, ask, marked_keys, running
from served_engine import TINY, hold_runs
from waiting import wait_until

DEADLINE_MS = 20_000


def told(responses: Responses) -> str:
    error = responses.get(timeout=30)
    assert isinstance(error, UnavailableError)
    return str(error).partition(" {")[0]  # without the facts for clients


def let_deadlines_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let them pass for rows that are staged, run or are answered; those that wait have their time."""
    monkeypatch.setattr(answering, "now_us", lambda: now_us() + 1000 * DEADLINE_MS)


def test_who_becomes_late_while_a_batch_runs_is_told_at_once(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds also where another batch is staged; the waiting thread sleeps until the next deadline."""
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)
    looks: list[None] = []
    drop_late = Admission.drop_late

    def counted(admission: Admission[Any], now_us: int) -> Any:
        looks.append(None)
        return drop_late(admission, now_us)

    monkeypatch.setattr(Admission, "drop_late", counted)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=2, max_adapters=3)) as service:
        runs = ask(service, key)
        assert begun.get(timeout=30) == 1
        joins = ask(service, key, deadline_ms=100)
        assert "waited" in told(joins)
        staged = [ask(service, key) for _ in range(2)]
        late = [ask(service, key, deadline_ms=deadline_ms) for deadline_ms in (300, 150)]
        in_time = ask(service, key, deadline_ms=60_000)
        assert all("waited" in told(responses) for responses in late)
        assert 0 < len(looks) < 40
        go.set()
        assert all(isinstance(responses.get(timeout=30), list) for responses in [runs, *staged, in_time])
        assert len(service.admission.waiting) == 0, "a late row still counts as waiting, and is held in memory"


def test_who_becomes_late_in_a_staged_batch_is_not_answered(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its neighbours are, computed without it: its slot may be another's soon. A batch of no other is not run."""
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=2, max_adapters=3)) as service:
        for others_deadline_ms in (None, DEADLINE_MS):
            go.clear()
            with service._loop._changed:
                runs = [ask(service, key), ask(service, key)]
            assert begun.get(timeout=30) == 2
            late, other = ask(service, key, deadline_ms=DEADLINE_MS), ask(service, key, deadline_ms=others_deadline_ms)
            wait_until(lambda: service._loop._staged is not None)
            with monkeypatch.context() as later:
                let_deadlines_pass(later)
                go.set()
                assert "waited" in told(late)
                if others_deadline_ms is None:
                    assert isinstance(other.get(timeout=30), list)
                    assert begun.get(timeout=30) == 1
                else:
                    assert "waited" in told(other)
                assert all(isinstance(responses.get(timeout=30), list) for responses in runs)
        assert isinstance(ask(service, key).get(timeout=30), list)
        assert begun.get(timeout=30) == 1, "the batch of late rows ran"
        assert not any(service._stacks.of(TINY).upper.slots._pins)


def test_who_would_come_too_late_is_refused_and_leaves_room(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused while another batch runs, long before the deadline; whoever waits behind runs in the batch instead."""
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)

    def with_deadline(admission: Admission[Any], indices: Sequence[int], now_us: int) -> list[int]:
        return [index for index in indices if admission.waiting[index].deadline_us is not None]

    monkeypatch.setattr(Admission, "infeasible", with_deadline)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=2, max_adapters=3)) as service:
        pending = [ask(service, key)]
        assert begun.get(timeout=30) == 1
        with service._loop._changed:
            late, *others = [ask(service, key, deadline_ms=ms) for ms in (60_000, None, None)]
        assert told(late) == "the deadline passes before a batch with the request could be done"
        go.set()
        assert all(isinstance(responses.get(timeout=30), list) for responses in [*pending, *others])
        assert begun.get(timeout=30) == 2
        assert len(service._loop._admission.waiting) == 0


def test_a_result_that_comes_too_late_is_none(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    key = next(iter(marked_keys(tiny_home, versions=0)))
    go, begun = hold_runs(monkeypatch)
    with running(tiny_home, num_slots=4, capacity=Capacity(max_rows=2, max_adapters=3)) as service:
        with service._loop._changed:
            late, other = ask(service, key, deadline_ms=DEADLINE_MS), ask(service, key)
        assert begun.get(timeout=30) == 2
        let_deadlines_pass(monkeypatch)
        go.set()
        assert told(late) == "the deadline passed while the request was computed"
        assert isinstance(other.get(timeout=30), list)

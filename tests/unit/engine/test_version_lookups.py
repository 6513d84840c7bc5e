"""Versions that a process does not know yet: the registry is asked on another thread, once, and never for long."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Iterator
from typing import cast

import numpy as np
import pytest

from backends.engine.service import HiddenRows, UpperService
from backends.engine.stack import StackSettings
from backends.engine.version_lookups import VersionLookups
from backends.errors import HplmError, NotFoundError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import Capacity
from backends.wire import Ticket, encode_tickets, fold_rows
from bench.kit.marks import publish_marked
from served_engine import HIDDEN, ask


class SlowSnapshot:
    """Answers once it may; knows the keys below 100 then."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.asked: list[set[int]] = []
        self.known: set[int] = set()
        self.error: Exception | None = None

    def knows(self, key: int) -> bool:
        return key in self.known

    def look_up(self, keys: Collection[int]) -> None:
        self.asked.append(set(keys))
        self.begun.set()
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        self.known |= {key for key in keys if key < 100}


@pytest.fixture
def slow() -> SlowSnapshot:
    return SlowSnapshot()


@pytest.fixture
def lookups(slow: SlowSnapshot) -> Iterator[VersionLookups]:
    lookups = VersionLookups(cast(RegistrySnapshot, slow), max_rows=6)
    yield lookups
    slow.go.set()
    lookups.close()


def test_one_query_answers_all_that_wait(slow: SlowSnapshot, lookups: VersionLookups) -> None:
    submitted: queue.Queue[int] = queue.Queue()
    lookups.add([1], 1, lambda: submitted.put(1))
    assert slow.begun.wait(30)
    for key in (2, 3, 2):
        lookups.add([key], 1, lambda key=key: submitted.put(key))  # type: ignore[misc]
    assert submitted.empty()
    slow.go.set()
    assert [submitted.get(timeout=30) for _ in range(4)] == [1, 2, 3, 2]
    assert slow.asked == [{1}, {2, 3}]


def test_no_more_rows_wait_than_may(slow: SlowSnapshot, lookups: VersionLookups) -> None:
    lookups.add([1], 4, lambda: None)
    with pytest.raises(UnavailableError, match="4 rows wait"):
        lookups.add([2], 3, lambda: None)
    slow.go.set()
    lookups.close()
    assert lookups._num_rows == 0
    with pytest.raises(UnavailableError, match="the server is stopping"):
        lookups.add([3], 1, lambda: None)


def test_what_does_not_exist_is_not_asked_for_again(slow: SlowSnapshot, lookups: VersionLookups) -> None:
    errors: queue.Queue[HplmError | None] = queue.Queue()

    def submit() -> None:
        try:
            lookups.require_found([7, 700])
            errors.put(None)
        except HplmError as error:
            errors.put(error)

    slow.go.set()
    lookups.add([7, 700], 2, submit)
    assert isinstance(errors.get(timeout=30), NotFoundError)
    with pytest.raises(NotFoundError, match="700 does not exist"):
        lookups.add([700], 1, submit)
    assert slow.asked == [{7, 700}]


def test_the_keys_that_are_remembered_are_bounded(
    slow: SlowSnapshot, lookups: VersionLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.engine.version_lookups._MOST_ABSENT", 3)
    slow.go.set()
    for key in range(200, 210):
        done = threading.Event()
        lookups.add([key], 1, done.set)
        assert done.wait(30)
    assert set(lookups._absent_until_s) == {207, 208, 209}


def test_a_registry_that_is_away_is_not_asked_by_every_row(
    slow: SlowSnapshot, lookups: VersionLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.engine.version_lookups.AWAY_S", 60.0)
    slow.error = UnavailableError("the registry cannot be reached: host 10.1.2.3")
    slow.go.set()
    done = threading.Event()
    lookups.add([1], 1, done.set)
    assert done.wait(30)
    for _ in range(3):
        with pytest.raises(UnavailableError, match="cannot be looked up now") as caught:
            lookups.add([2], 1, done.set)
    assert "10.1.2.3" not in str(caught.value)
    assert slow.asked == [{1}]


def test_rows_of_a_version_that_is_looked_up_hold_no_others(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry.open(tiny_home)
    snapshot = RegistrySnapshot(Registry.open(tiny_home), refresh_interval_s=3600.0)
    go, begun = threading.Event(), threading.Event()
    look_up = snapshot.look_up

    def slowly(keys: Collection[int]) -> None:
        begun.set()
        assert go.wait(30)
        look_up(keys)

    monkeypatch.setattr(snapshot, "look_up", slowly)
    service = UpperService(tiny_home, snapshot, StackSettings(dtype="fp32", num_slots=8), Capacity(max_adapters=7))
    live = registry.hplms()[0]
    new, absent = publish_marked(tiny_home, registry, live.id, live, live.domain).key, 12345
    waiting = [ask(service, [key]) for key in (new, absent)]
    assert begun.wait(30)
    assert isinstance(ask(service, [live.key]).get(timeout=30), list)
    assert all(responses.empty() for responses in waiting)
    go.set()
    answered, error = (responses.get(timeout=30) for responses in waiting)
    assert isinstance(answered, list) and '"version": 2' in answered[0].decode()
    assert isinstance(error, NotFoundError)
    service.close()
    snapshot.close()


def test_a_batch_of_triton_waits_for_a_new_version(tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    snapshot = RegistrySnapshot(Registry.open(tiny_home), refresh_interval_s=3600.0)
    service = UpperService(tiny_home, snapshot, StackSettings(dtype="fp32", num_slots=8), Capacity(max_adapters=7))
    live = registry.hplms()[0]
    new = publish_marked(tiny_home, registry, live.id, live, live.domain).key
    rows = fold_rows([np.zeros((5, HIDDEN), np.float16)])
    requests = [
        HiddenRows(rows, encode_tickets([Ticket(key, 5, False, None)]), [b""]) for key in (live.key, new, 12345)
    ]
    old, answered, error = service.run(requests)
    assert isinstance(old, list) and isinstance(answered, list)
    assert isinstance(error, NotFoundError)
    service.close()
    snapshot.close()

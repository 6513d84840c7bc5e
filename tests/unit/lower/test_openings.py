"""Domains that are slow to open, or cannot be: their own requests wait for them, and no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from backends.errors import HplmError, UnavailableError
from backends.home import Home
from backends.lower.domains import OpenDomain, OpenDomains
from backends.lower.encode_queue import Encoded, EncodeQueue
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.rejection import RejectedError, Rejection
from waiting import wait_until

_PATIENCE_S = 30.0
_SLOW, _HEALTHY = "initech/mood", "acme/topic"


class Disk:
    """Holds the opening of one domain back until it is allowed."""

    def __init__(self, slow: DomainEntry, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opening, self.allowed = threading.Event(), threading.Event()
        self.is_damaged = False
        open_domain = OpenDomains._open

        def open_slowly(domains: OpenDomains, domain: DomainEntry) -> OpenDomain:
            if domain.folders == slow.folders:
                self.opening.set()
                assert self.allowed.wait(_PATIENCE_S)
                if self.is_damaged:
                    raise HplmError("damaged")
            return open_domain(domains, domain)

        monkeypatch.setattr(OpenDomains, "_open", open_slowly)


class Asked:
    """Requests, and what has become of each."""

    def __init__(self, queue: EncodeQueue) -> None:
        self._queue = queue
        self._answers: dict[int, Encoded] = {}
        self._changed = threading.Condition()

    def ask(self, number: int, hplm: str, parameters: str = "") -> HplmError | None:
        def note(answer: Encoded) -> None:
            with self._changed:
                assert number not in self._answers
                self._answers[number] = answer
                self._changed.notify_all()

        self._queue.begin_call()
        return self._queue.add(TextRequest([hplm.encode()], [b"the cat is lovely"], parameters), note)

    def answer(self, number: int) -> Encoded:
        with self._changed:
            assert self._changed.wait_for(lambda: number in self._answers, _PATIENCE_S)
            return self._answers[number]

    def has_answer(self, number: int) -> bool:
        return number in self._answers


@pytest.fixture
def disk(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> Disk:
    registry = Registry.open(tiny_home)
    slow = registry.hplm(_SLOW).domain
    assert slow.folders != registry.hplm(_HEALTHY).domain.folders
    registry.close()
    return Disk(slow, monkeypatch)


@pytest.fixture
def service(tiny_home: Home, disk: Disk) -> Iterator[LowerService]:
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    service = LowerService(tiny_home, snapshot)
    service.domains.prepare(snapshot.find(_HEALTHY).domain)
    yield service
    disk.allowed.set()
    service.close()
    snapshot.close()


@pytest.fixture
def beats() -> list[float]:
    return []


@pytest.fixture
def queue(service: LowerService, disk: Disk, beats: list[float]) -> Iterator[EncodeQueue]:
    queue = EncodeQueue(service, beat=lambda: beats.append(time.monotonic()))
    yield queue
    disk.allowed.set()
    queue.close()


def while_another_opens(service: LowerService) -> None:
    service.domains.prepare(service._snapshot.find(_SLOW).domain)


def while_its_request_waits(service: LowerService) -> None:
    """The queue has it opened."""


@pytest.mark.parametrize("opening", [while_another_opens, while_its_request_waits])
def test_a_slow_opening_delays_no_other_request_and_no_beat(
    queue: EncodeQueue,
    service: LowerService,
    disk: Disk,
    beats: list[float],
    opening: Callable[[LowerService], None],
) -> None:
    asked = Asked(queue)
    opener = threading.Thread(target=opening, args=(service,), daemon=True)
    opener.start()
    assert asked.ask(0, _SLOW) is None
    assert disk.opening.wait(_PATIENCE_S)
    adding_s: list[float] = []
    for number in range(1, 11):
        began = time.monotonic()
        assert asked.ask(number, _HEALTHY) is None
        adding_s.append(time.monotonic() - began)
        assert isinstance(asked.answer(number), HiddenRequest)
    assert max(adding_s) < _PATIENCE_S / 2, "a request waited for the opening, which lasts"
    assert asked.ask(11, _SLOW) is None
    num_beats = len(beats)
    wait_until(lambda: len(beats) > num_beats)
    assert not asked.has_answer(0) and not asked.has_answer(11) and queue.num_rows == 2
    disk.allowed.set()
    opener.join(_PATIENCE_S)
    assert isinstance(asked.answer(0), HiddenRequest) and isinstance(asked.answer(11), HiddenRequest)
    assert queue.num_rows == 0


def test_a_domain_that_cannot_be_opened_fails_its_own_requests(queue: EncodeQueue, disk: Disk) -> None:
    disk.is_damaged = True
    disk.allowed.set()
    asked = Asked(queue)
    assert asked.ask(0, _SLOW) is None and asked.ask(1, _HEALTHY) is None
    assert str(asked.answer(0)) == "damaged"
    assert isinstance(asked.answer(1), HiddenRequest) and queue.num_rows == 0


def test_a_deadline_that_passes_while_a_domain_is_opened_is_told_then(queue: EncodeQueue, disk: Disk) -> None:
    asked = Asked(queue)
    wait_until(lambda: asked.ask(0, _SLOW, '{"deadline_ms": 300}') is None)  # a slow machine is late at once
    late = asked.answer(0)
    assert isinstance(late, RejectedError) and late.reason is Rejection.LATE_WAITING
    assert queue.num_rows == 0
    disk.allowed.set()
    assert asked.ask(1, _SLOW, '{"deadline_ms": 60000}') is None
    assert isinstance(asked.answer(1), HiddenRequest)


def test_what_waits_for_a_domain_when_the_queue_closes_is_told_so(queue: EncodeQueue, disk: Disk) -> None:
    asked = Asked(queue)
    assert asked.ask(0, _SLOW) is None
    assert disk.opening.wait(_PATIENCE_S)
    closing = threading.Thread(target=queue.close, daemon=True)
    closing.start()
    assert isinstance(asked.answer(0), UnavailableError)
    disk.allowed.set()
    closing.join(_PATIENCE_S)
    assert not closing.is_alive()


def test_a_defect_of_opening_leaves_nobody_waiting(service: LowerService, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(service, "open_domains", fail)
    failed = threading.Event()
    queue = EncodeQueue(service, on_failure=failed.set)
    asked = Asked(queue)
    assert asked.ask(0, _SLOW) is None
    assert isinstance(asked.answer(0), UnavailableError) and failed.wait(_PATIENCE_S)
    queue.close()

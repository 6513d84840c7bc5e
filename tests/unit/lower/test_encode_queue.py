"""The queue in front of the encoder: what it rejects before anything is computed, and in which order it encodes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.clock import now_us
from backends.errors import HplmError, InvalidArgumentError, UnavailableError
from backends.home import Home
from backends.lower import encode_queue
from backends.lower import service as service_module
from backends.lower.encode_queue import EncodeQueue
from backends.lower.service import AcceptedRequest, HiddenRequest, LowerService, TextRequest
from backends.lower.settings import QueueSettings
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.rejection import RejectedError, Rejection
from backends.scheduling.wait_forecast import LENGTHS, ForecastWriter, WaitForecast
from backends.server_folder import FOLDER_VARIABLE
from held_encoding import PATIENCE_S, Answers, Clock, Gate
from waiting import wait_until

_TENANTS = ("acme", "globex")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(now_us())
    for module in (encode_queue, service_module):
        monkeypatch.setattr(module, "now_us", lambda: clock.now_us)
    return clock


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForecastWriter]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    writer = ForecastWriter("upper")
    yield writer
    writer.close()


@pytest.fixture
def service(tiny_home: Home, engine: ForecastWriter) -> Iterator[LowerService]:
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    service = LowerService(tiny_home, snapshot)
    service.warm_up()
    yield service
    service.close()
    snapshot.close()


@pytest.fixture
def gate(service: LowerService, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(service, monkeypatch)


@pytest.fixture
def open_queue(service: LowerService, gate: Gate) -> Iterator[Callable[..., EncodeQueue]]:
    opened: list[EncodeQueue] = []

    def make(**settings: int) -> EncodeQueue:
        opened.append(EncodeQueue(service, QueueSettings(**settings)))
        opened[-1].begin_call()
        return opened[-1]

    yield make
    gate.opened.set()
    for queue in opened:
        queue.close()


def text(hplm: str = "acme/topic", deadline_ms: int | None = None, rows: int = 1) -> TextRequest:
    parameters = "" if deadline_ms is None else json.dumps({"deadline_ms": deadline_ms})
    return TextRequest([hplm.encode()] * rows, [b"the cat is lovely"] * rows, parameters)


def test_a_request_is_encoded_and_answered(open_queue: Callable[..., EncodeQueue], gate: Gate) -> None:
    queue, answers = open_queue(), Answers()
    gate.opened.set()
    assert queue.add(text(rows=3), answers.each.append) is None
    (answer,) = answers.wait(1)
    assert isinstance(answer, HiddenRequest) and len(answer.tickets) == 3
    assert queue.num_rows == 0


def test_a_full_batch_ends_the_wait_for_one(
    open_queue: Callable[..., EncodeQueue], service: LowerService, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "engine_wait_us", lambda: 10**12)
    monkeypatch.setattr(encode_queue, "_MAX_BATCHING_DELAY_US", 10**9)
    queue, answers = open_queue(batch_rows=4), Answers()
    gate.opened.set()
    queue.add(text(), answers.each.append)
    answers.wait(1)
    for _ in range(3):
        queue.add(text(), answers.each.append)
    assert len(answers.each) == 1 and queue.num_rows == 3
    queue.add(text(), answers.each.append)
    assert all(isinstance(answer, HiddenRequest) for answer in answers.wait(5))


def test_beyond_its_bound_the_queue_rejects_at_once(open_queue: Callable[..., EncodeQueue], gate: Gate) -> None:
    """All rows of a request or none, and with the time after which to ask again."""
    queue, answers = open_queue(max_rows=8, batch_rows=1), Answers()
    queue.add(text(), answers.each.append)
    assert gate.encoding.wait(PATIENCE_S)
    for hplm in ("acme/topic", "globex/topic"):
        assert queue.add(text(hplm, rows=4), answers.each.append) is None
    full = queue.add(text(), answers.each.append)
    assert isinstance(full, RejectedError) and full.reason is Rejection.QUEUE_FULL
    assert str(full).startswith("the queue is full: 8 rows wait {")
    facts = json.loads(str(full)[str(full).index("{") :])
    assert facts == {"reason": "queue_full", "retry_after_ms": full.retry_after_ms}
    assert queue.num_rows == 8, "a rejected request leaves nothing behind"
    gate.opened.set()
    assert all(isinstance(answer, HiddenRequest) for answer in answers.wait(3))


def test_a_request_that_can_never_wait_is_told_so(open_queue: Callable[..., EncodeQueue]) -> None:
    """A caller that is told that the queue is full would ask again for ever."""
    queue = open_queue(max_rows=8)
    error = queue.add(text(rows=5), print)
    assert isinstance(error, InvalidArgumentError)
    assert str(error).startswith("a request has 5 rows, and only 4 may be in it")


def test_a_defect_of_the_thread_leaves_nobody_waiting(service: LowerService, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    queue, answers = EncodeQueue(service, QueueSettings(batch_rows=1), failed.set), Answers()
    queue.begin_call()

    def fail() -> int:
        raise ValueError("a defect")

    monkeypatch.setattr(service, "engine_wait_us", fail)
    for _ in range(6):
        queue.add(text(), answers.each.append)
    assert failed.wait(PATIENCE_S)
    assert all(isinstance(answer, HiddenRequest | UnavailableError) for answer in answers.wait(6))
    assert isinstance(queue.add(text(), print), UnavailableError)
    queue.close()


def test_a_request_that_was_taken_is_answered_when_the_thread_fails(
    service: LowerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(service, "still_in_time", fail)
    queue, answers = EncodeQueue(service, on_failure=failed.set), Answers()
    queue.begin_call()
    queue.add(text(), answers.each.append)
    assert failed.wait(PATIENCE_S)
    assert isinstance(answers.wait(1)[0], UnavailableError)
    queue.close()


def test_no_tenant_fills_the_queue(open_queue: Callable[..., EncodeQueue]) -> None:
    queue, answers = open_queue(max_rows=8, batch_rows=1), Answers()
    found = [queue.add(text(), answers.each.append) for _ in range(6)]
    rejected = [error for error in found if isinstance(error, RejectedError)]
    assert rejected and all(error.reason is Rejection.TENANT_QUOTA for error in rejected)
    assert queue.add(text("globex/topic"), answers.each.append) is None


def test_wrong_requests_are_told_so(open_queue: Callable[..., EncodeQueue]) -> None:
    queue = open_queue()
    assert isinstance(queue.add(TextRequest([b"acme/topic"], [b" "], ""), print), InvalidArgumentError)
    assert isinstance(queue.add(text("acme/nothing"), print), HplmError)


def test_rows_accepted_between_two_forecasts_count(
    clock: Clock, open_queue: Callable[..., EncodeQueue], engine: ForecastWriter
) -> None:
    """In a burst no forecast counts the rows that have just been accepted, so the queue does."""
    work_us = [20_000.0] * len(LENGTHS)
    forecast = WaitForecast([1.0, 2.0, 3.0, 5.0, 8.0], [[20_000.0] * 5] * len(LENGTHS), {}, work_us)
    engine.tell(forecast, clock.now_us)
    queue, answers = open_queue(), Answers()
    found = [queue.add(text(deadline_ms=300), answers.each.append) for _ in range(100)]
    accepted = found.count(None)
    assert 5 <= accepted <= 16, "300 ms hold 15 rows of 20 ms"
    rejected = [error for error in found if isinstance(error, RejectedError)]
    assert {error.reason for error in rejected} == {Rejection.PREDICTED_LATE}
    assert queue.add(text("globex/topic", deadline_ms=300), answers.each.append) is None, "tenants take turns"
    assert queue.add(text(deadline_ms=60_000), answers.each.append) is None


def test_deadlines_go_first_and_tenants_without_take_turns(open_queue: Callable[..., EncodeQueue], gate: Gate) -> None:
    queue, answers = open_queue(batch_rows=1), Answers()
    queue.add(text("initech/mood"), answers.each.append)
    assert gate.encoding.wait(PATIENCE_S)
    for hplm in ("acme/topic", "acme/mood", "acme/topic", "globex/topic"):
        queue.add(text(hplm), answers.each.append)
    queue.add(text("initech/mood", deadline_ms=60_000), answers.each.append)
    gate.opened.set()
    answers.wait(6)
    assert gate.hplms[1:] == ["initech/mood", "acme/topic", "globex/topic", "acme/mood", "acme/topic"]


def test_a_request_too_large_for_the_room_holds_up_no_other_and_has_its_turn(
    clock: Clock, open_queue: Callable[..., EncodeQueue], gate: Gate, service: LowerService
) -> None:
    """Each round has rows with deadlines, beside which a full request of another tenant never fits."""
    queue, answers, encode = open_queue(batch_rows=4), Answers(), service.encode_accepted

    def encode_for_long(requests: Sequence[AcceptedRequest]) -> Any:
        clock.now_us += 600_000
        return encode(requests)

    service.encode_accepted = encode_for_long  # type: ignore[method-assign]
    queue.add(text("initech/mood"), answers.each.append)
    assert gate.encoding.wait(PATIENCE_S)
    queue.add(text("globex/topic", rows=4), answers.each.append)
    queue.add(text("acme/topic"), answers.each.append)
    for _ in range(5):
        queue.add(text("initech/mood", deadline_ms=60_000, rows=3), answers.each.append)
    gate.opened.set()
    answers.wait(8)
    assert gate.hplms[:3] == ["initech/mood", "initech/mood", "acme/topic"]
    assert 4 <= gate.hplms.index("globex/topic") <= 6, gate.hplms


def test_a_deadline_that_passes_in_the_queue_costs_no_encoding(
    clock: Clock, open_queue: Callable[..., EncodeQueue], gate: Gate
) -> None:
    queue, answers = open_queue(batch_rows=1), Answers()
    queue.add(text(), answers.each.append)
    assert gate.encoding.wait(PATIENCE_S)
    queue.begin_call()
    assert queue.add(text("globex/topic", deadline_ms=200), answers.each.append) is None
    clock.now_us += 250_000
    gate.opened.set()
    answer, late = answers.wait(2)
    assert isinstance(answer, HiddenRequest)
    assert isinstance(late, RejectedError) and late.reason is Rejection.LATE_WAITING
    assert gate.hplms == ["acme/topic"]


def test_deadlines_of_a_millisecond_are_all_rejected_while_the_encoder_is_busy(
    open_queue: Callable[..., EncodeQueue], gate: Gate
) -> None:
    queue, answers = open_queue(), Answers()
    queue.add(text(), answers.each.append)
    assert gate.encoding.wait(PATIENCE_S)
    queue.begin_call()
    at_once = [queue.add(text("globex/topic", deadline_ms=1), answers.each.append) for _ in range(100)]
    time.sleep(0.01)
    gate.opened.set()
    rejected = [*filter(None, at_once), *answers.wait(1 + at_once.count(None))[1:]]
    assert len(rejected) == 100 and all(isinstance(error, RejectedError) for error in rejected)
    assert gate.hplms == ["acme/topic"]


def test_callers_that_never_wait_are_held_to_the_bound(open_queue: Callable[..., EncodeQueue], gate: Gate) -> None:
    """Rows without deadline, faster than any engine: the queue keeps its bound, and answers what it took."""
    queue, answers = open_queue(max_rows=300), Answers()
    found = [queue.add(text(f"{tenant}/topic", rows=64), answers.each.append) for tenant in _TENANTS * 250]
    assert queue.num_rows <= 300 and found.count(None) >= 2
    rejected = [error for error in found if error is not None]
    reasons = {error.reason for error in rejected if isinstance(error, RejectedError)}
    assert len(rejected) > 480 and reasons <= {Rejection.QUEUE_FULL, Rejection.TENANT_QUOTA}
    gate.opened.set()
    assert all(isinstance(answer, HiddenRequest) for answer in answers.wait(found.count(None)))
    assert queue.num_rows == 0 and queue.add(text(), answers.each.append) is None


def test_while_the_engine_is_full_only_deadlines_are_encoded(
    clock: Clock, open_queue: Callable[..., EncodeQueue], gate: Gate, engine: ForecastWriter
) -> None:
    queue, answers = open_queue(engine_bytes=1000), Answers()
    gate.opened.set()
    queue.add(text(), answers.each.append)  # it shows how many bytes a token takes
    answers.wait(1)

    def tell(waiting_tokens: int) -> None:
        clock.now_us += 20_000  # what was encoded before has reached the engine
        curves = [[0.0] * 5] * len(LENGTHS)
        forecast = WaitForecast([1.0, 2.0, 3.0, 5.0, 8.0], curves, {}, [0.0] * len(LENGTHS), waiting_tokens)
        engine.tell(forecast, clock.now_us)

    tell(1000)
    queue.add(text("globex/topic"), answers.each.append)
    queue.add(text(deadline_ms=60_000), answers.each.append)
    answers.wait(2)
    assert gate.hplms == ["acme/topic", "acme/topic"] and queue.num_rows == 1
    tell(0)
    answers.wait(3)
    assert gate.hplms[-1] == "globex/topic"


def test_what_waits_when_the_server_stops_is_told_so(service: LowerService, gate: Gate) -> None:
    queue, answers = EncodeQueue(service, QueueSettings(batch_rows=1)), Answers()
    queue.begin_call()
    for _ in range(3):
        queue.add(text(), answers.each.append)
    assert gate.encoding.wait(PATIENCE_S)
    closing = threading.Thread(target=queue.close)
    closing.start()
    wait_until(lambda: queue._is_closed)
    gate.opened.set()
    closing.join()
    assert len(answers.each) == 3 and any(isinstance(answer, UnavailableError) for answer in answers.each)


def test_a_defect_of_encoding_costs_only_its_batch(
    service: LowerService, open_queue: Callable[..., EncodeQueue], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.opened.set()
    encode = service.encode_accepted

    def fail(requests: Sequence[AcceptedRequest]) -> Any:
        raise RuntimeError("a defect")

    queue, answers = open_queue(), Answers()
    monkeypatch.setattr(service, "encode_accepted", fail)
    queue.add(text(), answers.each.append)
    assert isinstance(answers.wait(1)[0], HplmError)
    monkeypatch.setattr(service, "encode_accepted", encode)
    queue.add(text(), answers.each.append)
    assert isinstance(answers.wait(2)[1], HiddenRequest)


@pytest.mark.usefixtures("clock")
def test_a_tenant_with_a_quota_of_its_own_gets_no_more(service: LowerService, tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    registry.quotas.set("acme", {"rows_per_s": 3.0})
    registry.quotas.set("globex", {"waiting_rows": 2})
    service._snapshot.refresh()
    queue = EncodeQueue(service)

    def asked(hplm: str, rows: int = 1) -> HplmError | None:
        return queue.add(TextRequest([hplm.encode()] * rows, [b"cat"] * rows, ""), lambda _: None)

    try:
        outcomes = [asked("acme/topic") for _ in range(4)]
        assert outcomes[:3] == [None] * 3
        assert isinstance(outcomes[3], RejectedError) and "(quota rows_per_s = 3)" in str(outcomes[3])
        assert service.refusals[Rejection.TENANT_QUOTA] == 1
        too_large = asked("globex/topic", rows=3)
        assert isinstance(too_large, InvalidArgumentError) and "quota waiting_rows" in str(too_large)
        registry.quotas.remove("acme")
        service._snapshot.refresh()
        assert asked("acme/topic", rows=16) is None
    finally:
        queue.close()
        registry.close()


def test_a_quota_of_its_own_may_be_larger_than_that_of_all(service: LowerService, tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    registry.quotas.set("globex", {"waiting_rows": 16})
    registry.close()
    service._snapshot.refresh()
    queue = EncodeQueue(service, QueueSettings(tenant_quota=8))
    try:
        for hplm, most in (("acme/topic", 8), ("globex/topic", 16)):
            asked = [TextRequest([hplm.encode()] * rows, [b"cat"] * rows, "") for rows in (most + 1, most)]
            too_large, fitting = (queue.add(request, lambda _: None) for request in asked)
            assert isinstance(too_large, InvalidArgumentError) and f"{most + 1} rows" in str(too_large)
            assert fitting is None
    finally:
        queue.close()

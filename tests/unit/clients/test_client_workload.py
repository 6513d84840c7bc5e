from __future__ import annotations

import random
import time

import pytest

from hplm_client import (
    ClientError,
    InvalidRequestError,
    NotFoundError,
    Request,
    RequestTimeoutError,
    ServerError,
    UnavailableError,
    Value,
)
from hplm_client.pace import Pace
from hplm_client.workload import Chunk, Hold, RequestLike, Workload
from seeds import SEED
from waiting import LIMIT_S


def value(number: float) -> Value:
    return Value(hplm="acme/length", version=1, task="regression", truncated=False, exact=True, value=number)


def all_chunks(workload: Workload) -> list[Chunk]:
    """Answer each chunk as soon as it is handed out; a row's answer is its position."""
    chunks = []
    while (chunk := workload.take()) is not None:
        assert isinstance(chunk, Chunk)
        chunks.append(chunk)
        workload.settle(chunk, [value(position) for position in chunk.positions])
    return chunks


def rejected(retry_after_s: float = 0.0, rows: int = 1) -> list[ClientError]:
    return [UnavailableError("later", reason="predicted_late", retry_after_s=retry_after_s) for _ in range(rows)]


def rows_under_way(workload: Workload) -> list[Chunk]:
    """Take chunks until there is none that may be sent."""
    taken = []
    while isinstance(chunk := workload.take(), Chunk):
        taken.append(chunk)
    return taken


def test_rejected_rows_are_asked_again_half_as_many_at_a_time() -> None:
    workload = Workload([("a/b", "x")] * 8, 8, "raise", deadline_ms=1000)
    sizes = []
    while (chunk := workload.take()) is not None:
        if isinstance(chunk, Hold):
            continue
        sizes.append(len(chunk))
        outcomes = rejected(rows=len(chunk)) if len(chunk) > 2 else [value(at) for at in chunk.positions]
        workload.settle(chunk, outcomes)
    assert sizes == [8, 4, 2, 2, 4, 2, 2]
    assert [answer.value for answer in workload.outcomes() if isinstance(answer, Value)] == list(range(8))


def test_nothing_is_sent_before_the_server_says() -> None:
    workload = Workload([("a/b", "x")] * 2, 1, "return", deadline_ms=1000)
    (chunk,) = rows_under_way(workload)
    workload.settle(chunk, rejected(0.2))
    began = time.monotonic()
    while isinstance(workload.take(), Hold):
        assert time.monotonic() - began < LIMIT_S
    assert time.monotonic() - began >= 0.15


def test_a_row_alone_is_not_sent_again() -> None:
    workload = Workload([("a/b", "x")], 8, "return", deadline_ms=1)
    (chunk,) = rows_under_way(workload)
    workload.settle(chunk, rejected(0.2))
    assert workload.take() is None
    assert [type(outcome) for outcome in workload.outcomes()] == [UnavailableError]


def test_with_a_deadline_as_many_rows_are_under_way_as_come_back_early() -> None:
    workload = Workload([("a/b", "x")] * 64, 2, "return", 16, deadline_ms=10_000)
    for most in (1, 2, 3, 4):
        under_way = rows_under_way(workload)
        assert len(under_way) == most
        workload.settle(under_way[0], [value(0)] * 2)
        for chunk in under_way[1:]:
            workload.settle(chunk, [NotFoundError("gone")] * 2)
    assert len(rows_under_way(Workload([("a/b", "x")] * 64, 2, "return", 16))) == 16, "no deadline limits nothing"


def test_a_call_ends_although_every_row_is_rejected() -> None:
    requests = [("a/b", "x")] * 4
    for limits in ({"timeout_s": 0.05}, {}):
        workload = Workload(requests, 4, "return", deadline_ms=100, **limits)  # type: ignore[arg-type]
        while (chunk := workload.take()) is not None:
            if isinstance(chunk, Chunk):
                workload.settle(chunk, rejected(3600.0, len(chunk)))
        assert [type(outcome) for outcome in workload.outcomes()] == [UnavailableError] * 4


def test_a_call_ends_in_time_although_the_server_says_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that wait for a server that rejected others get their errors at the end of the call."""
    now_s = 0.0
    monkeypatch.setattr("hplm_client.workload.time.monotonic", lambda: now_s)
    workload = Workload([("a/b", "x")] * 3, 1, "return", deadline_ms=1000, timeout_s=1.0)
    (chunk,) = rows_under_way(workload)
    workload.settle(chunk, rejected(10.0))
    while (step := workload.take()) is not None:
        if isinstance(step, Hold):
            now_s += step.duration_s
        else:
            workload.settle(step, [RequestTimeoutError("the time ran out")])
    assert 1.0 <= now_s < 1.1
    assert [type(outcome) for outcome in workload.outcomes()] == [UnavailableError, *[RequestTimeoutError] * 2]


def test_a_server_that_rejects_everything_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred calls whose deadline no row can meet, of a server that says each time: in ten milliseconds."""
    now_s = 0.0
    monkeypatch.setattr("hplm_client.pace.time.monotonic", lambda: now_s)
    workloads = [Workload([("a/b", "x")] * 16, 16, "return", 16, deadline_ms=1) for _ in range(100)]
    sent: list[float] = []
    while workloads:
        for workload in list(workloads):
            step = workload.take()
            if step is None:
                workloads.remove(workload)
            elif isinstance(step, Chunk):
                sent.append(now_s)
                workload.settle(step, rejected(0.01, len(step)))
        now_s += 0.01
    assert 9 < now_s < 20, "they wait for ten seconds without an answer"
    assert sum(3 < at_s < 9 for at_s in sent) <= 100 * 7, "once a second each, no more"


def test_an_answer_ends_the_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("hplm_client.pace.time.monotonic", lambda: now_s)
    pace = Pace(1, 16, 0.1)

    def pause_s() -> float:
        nonlocal now_s
        began_s = now_s
        while not pace.may_send(1):
            now_s += 0.001
        return now_s - began_s

    def rejected_times(count: int) -> float:
        for _ in range(count):
            pace.note_sent(1)
            pace.note_rejected(1, 0.02)
            last_s = pause_s()
        return last_s

    assert rejected_times(1) < 0.032 and 0.15 < rejected_times(3) < 0.25
    pace.note_sent(1)
    pace.note_answered(1, 0.01)
    assert rejected_times(1) < 0.032
    for _ in range(8):
        pace.note_sent(1)
    for _ in range(8):  # of one moment, so they say no more than one of them
        pace.note_rejected(1, 0.02)
    assert pause_s() < 0.065


def test_every_request_is_in_one_chunk_of_its_kind_and_answers_keep_order() -> None:
    generator = random.Random(SEED)
    hplms = [f"tenant{number}/m" for number in range(7)]
    requests = [
        Request(generator.choice(hplms), f"text {position}", deadline_ms=generator.choice([None, 10]))
        for position in range(generator.randrange(50, 300))
    ]
    workload = Workload(requests, 8, "return", level="full")
    for chunk in all_chunks(workload):
        assert 1 <= len(chunk.requests) <= 8
        assert len({(row.hplm, row.deadline_ms, row.level) for row in chunk.requests}) == 1
        assert all(row.level == "full" for row in chunk.requests)
        assert [requests[position].text for position in chunk.positions] == [row.text for row in chunk.requests]
    assert [answer.value for answer in workload.outcomes() if isinstance(answer, Value)] == list(range(len(requests)))


def test_defaults_of_the_call_do_not_overrule_a_request() -> None:
    requests: list[RequestLike] = [Request("a/b", "x", deadline_ms=5, level="student"), ("a/b", "y"), ("a/b", "y", "z")]
    first, second = all_chunks(Workload(requests, 8, "raise", deadline_ms=90, level="full"))
    assert [(row.deadline_ms, row.level) for row in first.requests] == [(5, "student")]
    assert [(row.deadline_ms, row.level, row.text_pair) for row in second.requests] == [
        (90, "full", None),
        (90, "full", "z"),
    ]


def test_bad_requests_stand_in_their_places() -> None:
    requests = [
        ("a/b", "x"),
        ("a/b", ""),
        ("nobody", "x"),
        ("a/b",),
        "a/b",
        None,
        ["a/b", "x"],
        ("a/b", "y", "z", "w", "v", "u"),
    ]
    workload = Workload(requests, 8, "return")  # type: ignore[arg-type]
    assert len(all_chunks(workload)) == 1
    outcomes = workload.outcomes()
    assert [type(outcome) for outcome in outcomes] == [Value] + [InvalidRequestError] * 7


def test_raise_sends_nothing_when_a_request_is_bad() -> None:
    workload = Workload([("a/b", "x"), ("a/b", "")], 8, "raise")
    assert workload.take() is None
    with pytest.raises(InvalidRequestError, match="text is empty"):
        workload.outcomes()


def test_raise_stops_at_an_error_and_raises_the_first_in_order() -> None:
    workload = Workload([(f"a/m{number}", "x") for number in range(5)], 1, "raise", 2)
    first, second = rows_under_way(workload)
    workload.settle(second, [ServerError("later")])
    assert workload.take() is None
    workload.settle(first, [NotFoundError("earlier")])
    with pytest.raises(ClientError, match="earlier"):
        workload.outcomes()


def test_no_requests_no_answers() -> None:
    assert Workload([], 8, "raise").outcomes() == []


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="on_error"):
        Workload([], 8, "ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="timeout_s"):
        Workload([], 8, "raise", timeout_s=0)

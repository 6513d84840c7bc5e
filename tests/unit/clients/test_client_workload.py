from __future__ import annotations

import random

import pytest

from hplm_client import ClientError, InvalidRequestError, NotFoundError, Request, ServerError, Value
from hplm_client.workload import Chunk, RequestLike, Workload
from seeds import SEED


def value(number: float) -> Value:
    return Value(hplm="acme/length", version=1, task="regression", truncated=False, exact=True, value=number)


def all_chunks(workload: Workload) -> list[Chunk]:
    return list(iter(workload.take, None))


def test_every_request_is_in_one_chunk_of_its_kind_and_answers_keep_order() -> None:
    generator = random.Random(SEED)
    hplms = [f"tenant{number}/m" for number in range(7)]
    requests = [
        Request(generator.choice(hplms), f"text {position}", deadline_ms=generator.choice([None, 10]))
        for position in range(generator.randrange(50, 300))
    ]
    workload = Workload(requests, 8, "return", level="full")
    chunks = all_chunks(workload)
    generator.shuffle(chunks)
    for chunk in chunks:
        assert 1 <= len(chunk.requests) <= 8
        assert len({(row.hplm, row.deadline_ms, row.level) for row in chunk.requests}) == 1
        assert all(row.level == "full" for row in chunk.requests)
        assert [requests[position].text for position in chunk.positions] == [row.text for row in chunk.requests]
        workload.settle(chunk, [value(position) for position in chunk.positions])
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
    (chunk,) = all_chunks(workload)
    workload.settle(chunk, [value(1)])
    outcomes = workload.outcomes()
    assert [type(outcome) for outcome in outcomes] == [Value] + [InvalidRequestError] * 7


def test_raise_sends_nothing_when_a_request_is_bad() -> None:
    workload = Workload([("a/b", "x"), ("a/b", "")], 8, "raise")
    assert workload.take() is None
    with pytest.raises(InvalidRequestError, match="text is empty"):
        workload.outcomes()


def test_raise_stops_at_an_error_and_raises_the_first_in_order() -> None:
    workload = Workload([(f"a/m{number}", "x") for number in range(5)], 1, "raise")
    first, second = workload.take(), workload.take()
    assert first is not None and second is not None
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

"""Conversations are driven by hand here: what would go to the server comes out as steps, and its answers are put in."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable

import pytest

from hplm_client import (
    ClientError,
    ConnectionFailedError,
    ConnectionLostError,
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    Request,
    RequestTimeoutError,
    ServerError,
    UnavailableError,
    Value,
)
from hplm_client.codec import Call
from hplm_client.conversation import Conversation, Outcome, Pause, Probe, Send, Speaker, Step
from hplm_client.limits import RetryPolicy

Server = Callable[[Call], list[bytes]]


class Clock:
    """The time of conversations, which goes on in their pauses only."""

    now_s = 1000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: Clock.now_s)


def value_row(hplm: str, text: bytes) -> bytes:
    return json.dumps({"hplm": hplm, "version": 1, "task": "regression", "value": len(text)}).encode()


def answering(call: Call) -> list[bytes]:
    return [value_row(call.hplm, text) for text in call.texts]


def carry_out(conversation: Conversation[list[Outcome]], server: Server) -> tuple[list[Outcome], list[Step]]:
    """The outcome of a conversation with a server, and the steps on the way."""
    steps: list[Step] = []
    try:
        step = next(conversation)
        while True:
            steps.append(step)
            try:
                reply = _perform(step, server)
            except ClientError as error:
                step = conversation.throw(error)
            else:
                step = conversation.send(reply)
    except StopIteration as end:
        return end.value, steps


def _perform(step: Step, server: Server) -> list[bytes] | None:
    if isinstance(step, Send):
        return server(step.call)
    if isinstance(step, Pause):
        Clock.now_s += step.duration_s
    return None


def failing(*errors: ClientError) -> Server:
    """A server that fails so often before it answers."""
    pending = list(errors)

    def serve(call: Call) -> list[bytes]:
        if pending:
            raise pending.pop(0)
        return answering(call)

    return serve


def speaker(retries: int = 2, token: str | dict[str, str] | None = None) -> Speaker:
    return Speaker(RetryPolicy(retries, first_pause_s=0.01), token)


def test_rows_are_answered_in_order_and_parameters_are_sent() -> None:
    requests = [Request("acme/length", text, deadline_ms=200, level="full") for text in ("a", "bb", "ccc")]
    outcomes, (step,) = carry_out(speaker(token={"acme": "secret", "globex": "other"}).ask(requests), answering)
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Value)] == [1, 2, 3]
    assert isinstance(step, Send)
    assert step.call.headers == {"x-hplm": "acme/length", "x-request-id": step.call.request_id} and step.call.request_id
    deadline_ms = step.call.parameters["deadline_ms"]
    assert step.call.parameters == {"deadline_ms": deadline_ms, "tenant_token": "secret", "level": "full"}
    assert isinstance(deadline_ms, int) and 150 < deadline_ms <= 200 and 1.1 < step.timeout_s < 1.2 + 1e-9


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    _, (step,) = carry_out(speaker(token={"globex": "other"}).ask([Request("acme/length", "a")]), answering)
    assert isinstance(step, Send) and step.call.parameters == {} and 29 < step.timeout_s <= 30
    assert "secret" not in repr(speaker(token="secret"))


@pytest.mark.parametrize("error", [ConnectionFailedError("refused"), NotReadyError("loading")])
def test_a_request_that_was_never_executed_is_sent_again_after_a_pause(error: ClientError) -> None:
    (outcome,), steps = carry_out(speaker().ask([Request("acme/length", "abc")]), failing(error, error))
    assert isinstance(outcome, Value)
    assert [type(step) for step in steps] == [Send, Pause, Send, Pause, Send]


def test_pauses_double_and_vary_and_end() -> None:
    policy = RetryPolicy(retries=9, first_pause_s=0.1, longest_pause_s=0.5)
    for failures, ceiling_s in [*enumerate([0.1, 0.2, 0.4, 0.5, 0.5]), (5000, 0.5)]:
        pauses = [policy.pause_s(failures) for _ in range(200)]
        assert ceiling_s / 2 <= min(pauses) < 0.6 * ceiling_s and 0.9 * ceiling_s < max(pauses) <= ceiling_s


@pytest.mark.parametrize("deadline_ms", [None, 2000])
def test_default_retries_bridge_what_a_gateway_takes_to_start_again(deadline_ms: int | None) -> None:
    for _ in range(200):
        back_at = Clock.now_s + 0.6

        def restarted(call: Call, back_at: float = back_at) -> list[bytes]:
            if Clock.now_s < back_at:
                raise ConnectionFailedError("refused")
            return answering(call)

        request = Request("acme/length", "abc", deadline_ms=deadline_ms)
        (outcome,), _ = carry_out(Speaker(RetryPolicy()).ask([request]), restarted)
        assert isinstance(outcome, Value) and Clock.now_s - back_at < 1.0


@pytest.mark.parametrize("left_s", [0.15, 0.3, 1.0, 30.0])
def test_pauses_without_a_connection_leave_time_for_a_retry(left_s: float) -> None:
    ceiling_s = min(0.5, left_s / 2)
    pauses = [RetryPolicy().unconnected_pause_s(0, left_s) for _ in range(200)]
    assert ceiling_s / 2 <= min(pauses) and 0.9 * ceiling_s < max(pauses) <= ceiling_s
    assert max(RetryPolicy().unconnected_pause_s(0, 0.01) for _ in range(200)) <= 0.05


def test_other_failures_are_followed_by_short_pauses() -> None:
    _, steps = carry_out(Speaker(RetryPolicy()).ask([Request("acme/length", "abc")]), failing(NotReadyError("loading")))
    assert [step.duration_s <= 0.05 for step in steps if isinstance(step, Pause)] == [True]


def test_retries_are_counted() -> None:
    errors = [ConnectionFailedError(f"refused {number}") for number in range(5)]
    for retries in (0, 1, 3):
        (outcome,), steps = carry_out(speaker(retries).ask([Request("acme/length", "abc")]), failing(*errors))
        assert outcome is errors[retries]
        assert sum(isinstance(step, Send) for step in steps) == retries + 1


@pytest.mark.parametrize("kind", [UnavailableError, ConnectionLostError, RequestTimeoutError, NotFoundError])
def test_what_may_have_been_executed_or_was_refused_is_not_sent_again(kind: type[ClientError]) -> None:
    requests = [Request("acme/length", text) for text in ("a", "b")]
    outcomes, steps = carry_out(speaker(5).ask(requests), failing(kind("no")))
    assert [type(outcome) for outcome in outcomes] == [kind, kind] and len(steps) == 1
    assert outcomes[0].hplm == "acme/length"


@pytest.mark.parametrize(("timeout_s", "deadline_ms"), [(0.3, None), (None, 300), (10, 300)])
def test_retries_end_with_the_timeout_or_the_deadline(timeout_s: float | None, deadline_ms: int | None) -> None:
    def down(call: Call) -> list[bytes]:
        raise ConnectionFailedError("refused")

    request = Request("acme/length", "abc", deadline_ms=deadline_ms)
    started_at = Clock.now_s
    (outcome,), steps = carry_out(Speaker(RetryPolicy(1000)).ask([request], timeout_s), down)
    assert isinstance(outcome, ConnectionFailedError) and 0.05 < Clock.now_s - started_at < 0.3
    sends = [step for step in steps if isinstance(step, Send)]
    assert all(later.timeout_s < earlier.timeout_s for earlier, later in itertools.pairwise(sends))
    if deadline_ms is not None:
        deadlines = [int(send.call.parameters["deadline_ms"]) for send in sends]
        assert deadlines == sorted(deadlines, reverse=True) and 0 < deadlines[-1] < deadlines[0] <= deadline_ms


def test_an_answer_that_comes_after_the_deadline_is_refused() -> None:
    def slow(call: Call) -> list[bytes]:
        Clock.now_s += 0.03
        return answering(call)

    requests = [Request("acme/area", "late", deadline_ms=20), Request("acme/area", "in time", deadline_ms=60_000)]
    for request, is_late in zip(requests, (True, False), strict=True):
        (outcome,), _ = carry_out(Speaker(RetryPolicy()).ask([request]), slow)
        assert isinstance(outcome, UnavailableError) is is_late
        assert not is_late or "the deadline passed" in str(outcome)


@pytest.mark.parametrize("kind", [InvalidRequestError, ServerError])
def test_a_bad_row_costs_its_neighbours_nothing(kind: type[ClientError]) -> None:
    def strict(call: Call) -> list[bytes]:
        if b"bad" in call.texts:
            raise kind("cannot read this")
        return answering(call)

    requests = [Request("acme/length", text) for text in ("a", "bad", "ccc")]
    outcomes, steps = carry_out(speaker().ask(requests), strict)
    assert [type(outcome) for outcome in outcomes] == [Value, kind, Value]
    assert [len(step.call.texts) for step in steps if isinstance(step, Send)] == [3, 1, 1, 1]


@pytest.mark.parametrize(("retries", "sent_rows"), [(0, [16]), (1, [16, 1]), (2, [16, 1, 1])])
def test_a_failing_server_is_not_asked_for_each_row(retries: int, sent_rows: list[int]) -> None:
    def down(call: Call) -> list[bytes]:
        raise ServerError(f"failed with {len(call.texts)} rows")

    outcomes, steps = carry_out(speaker(retries).ask([Request("acme/length", "a")] * 16), down)
    assert [type(outcome) for outcome in outcomes] == [ServerError] * 16
    assert [len(step.call.texts) for step in steps if isinstance(step, Send)] == sent_rows
    assert sum(isinstance(step, Pause) for step in steps) == retries


def test_rejected_rows_are_all_sent_alone_without_pauses() -> None:
    def strict(call: Call) -> list[bytes]:
        if call.texts != (b"good",):
            raise InvalidRequestError("cannot read this")
        return answering(call)

    requests = [Request("acme/length", text) for text in ["bad"] * 15 + ["good"]]
    outcomes, steps = carry_out(speaker(retries=0).ask(requests), strict)
    assert [type(outcome) for outcome in outcomes] == [InvalidRequestError] * 15 + [Value]
    assert [len(step.call.texts) for step in steps if isinstance(step, Send)] == [16] + [1] * 16
    assert not any(isinstance(step, Pause) for step in steps)


def test_an_unreadable_row_costs_its_neighbours_nothing() -> None:
    def sloppy(call: Call) -> list[bytes]:
        return [row if text != b"bad" else b"{" for row, text in zip(answering(call), call.texts, strict=True)]

    outcomes, steps = carry_out(speaker().ask([Request("acme/length", text) for text in ("bad", "b")]), sloppy)
    assert [type(outcome) for outcome in outcomes] == [ServerError, Value] and len(steps) == 1


def test_nothing_is_sent_after_the_end_of_the_whole_call() -> None:
    request = Request("acme/length", "abc")
    outcomes, steps = carry_out(speaker().ask([request], call_ends_at=Clock.now_s - 1), answering)
    assert isinstance(outcomes[0], RequestTimeoutError) and steps == []


def test_waiting_for_readiness_ends_when_ready_and_in_time() -> None:
    conversation = speaker().wait_ready(5)
    assert isinstance(next(conversation), Probe)
    assert isinstance(conversation.throw(ConnectionFailedError("refused")), Pause)
    assert isinstance(conversation.send(None), Probe)
    with pytest.raises(StopIteration):
        conversation.send(True)

    conversation = speaker().wait_ready(0.05)
    next(conversation)
    with pytest.raises(RequestTimeoutError, match=r"within 0\.05 s"):
        conversation.send(False)


def test_bad_limits_are_refused() -> None:
    for timeout_s in (0, -1):
        with pytest.raises(InvalidRequestError, match="timeout_s"):
            Speaker(RetryPolicy(), None, timeout_s)
        with pytest.raises(InvalidRequestError, match="timeout_s"):
            next(speaker().ask_one(Request("acme/length", "a"), timeout_s))
    with pytest.raises(InvalidRequestError, match="retries"):
        RetryPolicy(-1)


def no_room(retry_after_s: float = 0.05) -> UnavailableError:
    return UnavailableError("the queue is full", reason="queue_full", retry_after_s=retry_after_s)


def test_a_request_that_found_no_room_waits_as_long_as_the_server_says() -> None:
    (outcome,), steps = carry_out(speaker().ask([Request("acme/length", "a")]), failing(no_room()))
    assert isinstance(outcome, Value)
    (pause,) = [step for step in steps if isinstance(step, Pause)]
    assert 0.05 <= pause.duration_s <= 0.075


def test_a_deadline_that_cannot_be_met_is_not_asked_again() -> None:
    late = UnavailableError("predicted to be late", reason="predicted_late", retry_after_s=0.01)
    (outcome,), steps = carry_out(speaker().ask([Request("acme/length", "a", deadline_ms=1000)]), failing(late))
    assert outcome is late and len(steps) == 1


def test_retries_end_with_the_budget_and_answers_renew_it() -> None:
    """A hundred requests find no room once; not every one is sent a second time."""
    asker = speaker()

    def retried(count: int) -> int:
        conversations = (asker.ask([Request("acme/length", "a")]) for _ in range(count))
        return sum(len(carry_out(one, failing(no_room(0.0)))[1]) > 1 for one in conversations)

    assert 10 <= retried(100) <= 12
    for _ in range(30):
        carry_out(asker.ask([Request("acme/length", "a")]), answering)
    assert 2 <= retried(100) <= 5


def test_a_wrong_wall_clock_changes_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines travel as durations, measured by a clock that nobody sets."""
    jumps = itertools.cycle([0.0, 4e9])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    (outcome,), (step,) = carry_out(speaker().ask([Request("acme/length", "a", deadline_ms=500)]), answering)
    assert isinstance(outcome, Value) and isinstance(step, Send)
    assert 400 < int(step.call.parameters["deadline_ms"]) <= 500

"""The conversation with the server, without its transport: shared by the sync and the async client.

A conversation is a generator. It yields steps (send this, pause), is sent each step's outcome or thrown its error, and
returns the answers. The clients differ only in how they carry out a step.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from hplm_client.answers import Answer, read_answer
from hplm_client.choice import Choice
from hplm_client.codec import Call
from hplm_client.errors import (
    ClientError,
    ClosedError,
    ConnectionFailedError,
    InvalidRequestError,
    RequestTimeoutError,
    ServerError,
    UnavailableError,
    WrongPortError,
)
from hplm_client.limits import RetryBudget, RetryPolicy, Window, check_timeout
from hplm_client.request import Request

_READY_POLL_S = 0.1
_PROBE_TIMEOUT_S = 2.0

Outcome = Union[Answer, ClientError]


@dataclass(frozen=True)
class Send:
    call: Call
    timeout_s: float
    server: int = 0
    """Number of the address."""


@dataclass(frozen=True)
class Probe:
    timeout_s: float
    server: int = 0


@dataclass(frozen=True)
class Pause:
    duration_s: float


Step = Union[Send, Probe, Pause]
T = TypeVar("T")
Conversation = Generator[Step, Any, T]


@dataclass(frozen=True)
class Speaker:
    """Makes the conversations of one client from its settings."""

    retry: RetryPolicy
    token: str | Mapping[str, str] | None = field(default=None, repr=False)
    timeout_s: float | None = None
    budget: RetryBudget = field(default_factory=RetryBudget, repr=False, compare=False)
    choice: Choice = field(default_factory=lambda: Choice(1), repr=False, compare=False)

    def __post_init__(self) -> None:
        check_timeout(self.timeout_s)

    def ask_one(self, request: Request, timeout_s: float | None) -> Conversation[Answer]:
        check_timeout(timeout_s)
        (outcome,) = yield from self.ask([request], timeout_s)
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome

    def ask(
        self, requests: Sequence[Request], timeout_s: float | None = None, call_ends_at: float | None = None
    ) -> Conversation[list[Outcome]]:
        """Send rows of one hPLM with equal parameters as one Triton request.

        Triton answers or rejects such a request as a whole. Where a row may be the reason, each is sent again alone.
        """
        request_id = uuid.uuid4().hex
        try:
            rows = yield from self._exchange(requests, request_id, timeout_s or self.timeout_s, call_ends_at)
        except ClientError as error:
            if len(requests) > 1 and isinstance(error, (InvalidRequestError, ServerError)):
                return (yield from self._ask_each(requests, error, timeout_s, call_ends_at))
            return [_about(error, request, request_id) for request in requests]
        return [_read(row, request, request_id) for row, request in zip(rows, requests)]

    def probe(self, within_s: float = _PROBE_TIMEOUT_S) -> Conversation[bool]:
        """Whether a server is up and serves hPLMs; one that cannot be reached is not."""
        ends_at = time.monotonic() + within_s
        for server in self.choice.order():
            left_s = max(_READY_POLL_S, ends_at - time.monotonic())
            try:
                if (yield Probe(min(_PROBE_TIMEOUT_S, self.timeout_s or _PROBE_TIMEOUT_S, left_s), server)):
                    return True
            except (WrongPortError, ClosedError):
                raise
            except ClientError as error:
                self.choice.note_error(server, error)
        return False

    def wait_ready(self, timeout_s: float) -> Conversation[None]:
        check_timeout(timeout_s)
        ends_at = time.monotonic() + timeout_s
        while not (yield from self.probe(max(_READY_POLL_S, ends_at - time.monotonic()))):
            if time.monotonic() + _READY_POLL_S >= ends_at:
                raise RequestTimeoutError(f"the server was not ready within {timeout_s:g} s")
            yield Pause(_READY_POLL_S)

    def _ask_each(
        self, requests: Sequence[Request], error: ClientError, timeout_s: float | None, call_ends_at: float | None
    ) -> Conversation[list[Outcome]]:
        """Send each row alone, so that a bad one costs no neighbour its answer.

        A server that fails more often than `retries` allows is the reason itself: the remaining rows are not sent and
        share its last error.
        """
        outcomes: list[Outcome] = []
        failures = int(isinstance(error, ServerError))
        has_failed = failures > 0
        for request in requests:
            if failures > self.retry.retries:
                outcomes.append(_about(error, request, error.request_id))
                continue
            if has_failed:
                yield Pause(self.retry.pause_s(failures - 1))
            (outcome,) = yield from self.ask([request], timeout_s, call_ends_at)
            outcomes.append(outcome)
            has_failed = isinstance(outcome, ServerError)
            if isinstance(outcome, ServerError):
                error, failures = outcome, failures + 1
        return outcomes

    def _exchange(
        self, requests: Sequence[Request], request_id: str, timeout_s: float | None, call_ends_at: float | None
    ) -> Conversation[list[bytes]]:
        """Send until there is an outcome that must not, or need not, be tried again.

        A server that did not execute the request sends it on to the next one at once; only when none is left, or the
        server has no room, is there a pause.
        """
        first = requests[0]
        window = Window.opening_now(timeout_s, first.deadline_ms, call_ends_at)
        texts = tuple(request.wire_text for request in requests)
        failures, servers = 0, self.choice.order(first.tenant)
        unreached: list[ClientError] = []
        while True:
            if window.remaining_s() <= 0:
                raise RequestTimeoutError("the time ran out before the request was sent")
            call = Call(first.hplm, texts, self._parameters(first, window.remaining_deadline_ms()), request_id)
            server = servers.pop(0)
            try:
                rows: list[bytes] = yield Send(call, window.remaining_s(), server)
                self.choice.note_answer(first.tenant, server)
                window.require_in_time()
                self.budget.note_answer()
                return rows
            except ClientError as error:
                self.choice.note_error(server, error)
                if error.may_repeat:
                    unreached.append(error)
                    if servers and window.allows_pause(0.0):
                        continue
                pause_s = self._pause_s(error, failures, window)
                is_last = failures >= self.retry.retries or not _may_repeat(error) or not window.allows_pause(pause_s)
                if is_last or not self.budget.take():
                    if error.may_repeat and len(unreached) > 1:
                        raise _joint(unreached) from error
                    raise
                servers = self.choice.order(first.tenant) if error.may_repeat else [server]
            failures, unreached = failures + 1, []
            yield Pause(pause_s)

    def _pause_s(self, error: ClientError, failures: int, window: Window) -> float:
        if isinstance(error, ConnectionFailedError):
            return self.retry.unconnected_pause_s(failures, window.left_s())
        return self.retry.pause_s(failures, _retry_after_s(error))

    def _parameters(self, request: Request, deadline_ms: int | None) -> dict[str, str | int]:
        token = self.token.get(request.tenant) if isinstance(self.token, Mapping) else self.token
        candidates = {"deadline_ms": deadline_ms, "tenant_token": token, "level": request.level}
        return {name: value for name, value in candidates.items() if value is not None}


def _may_repeat(error: ClientError) -> bool:
    """Return whether the same request may be answered later; it was not executed."""
    return error.may_repeat or (isinstance(error, UnavailableError) and error.is_about_room)


def _joint(unreached: Sequence[ClientError]) -> ClientError:
    """Return an error of the last one's type that says what each server said."""
    said = "; ".join(dict.fromkeys(each.message for each in unreached))
    return type(unreached[-1])(f"none of {len(unreached)} servers took the request: {said}")


def _retry_after_s(error: ClientError) -> float | None:
    return error.retry_after_s if isinstance(error, UnavailableError) else None


def _read(row: bytes, request: Request, request_id: str) -> Outcome:
    try:
        return read_answer(row, request_id)
    except ClientError as error:
        return _about(error, request, request_id)


def _about(error: ClientError, request: Request, request_id: str | None) -> ClientError:
    error.hplm = request.hplm
    error.request_id = request_id
    return error

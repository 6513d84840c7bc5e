"""Many requests at once: which rows share a Triton request, when each is sent, and the order of their outcomes."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Union

from hplm_client.conversation import Outcome
from hplm_client.errors import ClientError, InvalidRequestError, UnavailableError
from hplm_client.limits import check_timeout
from hplm_client.pace import Pace
from hplm_client.request import Request

OnError = Literal["raise", "return"]
RequestLike = Union[Request, tuple[str, str], tuple[str, str, str]]


@dataclass(frozen=True)
class Chunk:
    """Requests with the same hPLM and parameters, and their positions in the caller's list."""

    positions: tuple[int, ...]
    requests: tuple[Request, ...]

    def __len__(self) -> int:
        return len(self.requests)

    def halves(self) -> list[Chunk]:
        """All rows of a request are admitted or none, so fewer at a time may be."""
        middle = (len(self) + 1) // 2
        parts = (slice(0, middle), slice(middle, None))
        return [Chunk(self.positions[part], self.requests[part]) for part in parts if self.requests[part]]


@dataclass(frozen=True)
class Hold:
    """Nothing may be sent for this long."""

    duration_s: float = 0.01


class Workload:
    """Hands out chunks to any number of workers and collects the outcomes in the caller's order.

    Chunks that the server rejected for now are handed out again. Safe between threads.

    Args:
        requests: What to ask.
        rows_per_request: Rows of a chunk, at most.
        on_error: Whether the first error ends the call.
        concurrency: Chunks under way, at most.
        deadline_ms: Deadline of the requests that have none of their own, each from when it is sent.
        level: Level of the requests that have none of their own.
        timeout_s: Limit of the whole call.
    """

    def __init__(
        self,
        requests: Iterable[RequestLike],
        rows_per_request: int,
        on_error: OnError,
        concurrency: int = 1,
        *,
        deadline_ms: int | None = None,
        level: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        if on_error not in ("raise", "return"):
            raise InvalidRequestError(f"on_error must be 'raise' or 'return', not {on_error!r}")
        check_timeout(timeout_s)
        self.ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._on_error = on_error
        checked = [_checked(request, deadline_ms, level) for request in requests]
        self._outcomes: list[Outcome | None] = [item if isinstance(item, ClientError) else None for item in checked]
        self._pending = deque(_chunks(checked, rows_per_request))
        self._pace = _pace(checked, rows_per_request, concurrency)
        self._sent_at: dict[Chunk, float] = {}
        self._is_abandoned = False
        self._lock = threading.Lock()
        self._stop_on(item for item in checked if isinstance(item, ClientError))

    def __len__(self) -> int:
        return len(self._pending)

    def take(self) -> Chunk | Hold | None:
        """The next chunk to send; None once there is none, and none can be handed out again.

        Once the call has ended, all chunks are handed out at once: none is sent any more, so each gets its error.
        """
        with self._lock:
            if not self._pending:
                return Hold() if self._sent_at and not self._is_abandoned else None
            if not self._has_ended() and not self._pace.may_send(len(self._pending[0])):
                return Hold()
            chunk = self._pending.popleft()
            self._pace.note_sent(len(chunk))
            self._sent_at[chunk] = time.monotonic()
            return chunk

    def settle(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> None:
        with self._lock:
            took_s = time.monotonic() - self._sent_at.pop(chunk)
            rejection = _rejection(outcomes)
            if rejection is not None and self._sends_again(chunk, rejection):
                return
            if rejection is None and any(not isinstance(outcome, ClientError) for outcome in outcomes):
                self._pace.note_answered(len(chunk), took_s)
            elif rejection is None:
                self._pace.note_failed(len(chunk))
        for position, outcome in zip(chunk.positions, outcomes):
            self._outcomes[position] = outcome
        self._stop_on(outcome for outcome in outcomes if isinstance(outcome, ClientError))

    def abandon(self) -> None:
        """Hand out no further chunk."""
        with self._lock:
            self._is_abandoned = True
            self._pending.clear()

    def _has_ended(self) -> bool:
        return self.ends_at is not None and time.monotonic() >= self.ends_at

    def _sends_again(self, chunk: Chunk, rejection: UnavailableError) -> bool:
        """Return whether a rejected chunk waits to be sent again; a row alone has waited for no other and is not."""
        if len(self._outcomes) == 1:
            return False
        may_be_answered = self._pace.note_rejected(len(chunk), rejection.retry_after_s or 0.0)
        in_time = self.ends_at is None or self._pace.resumes_at < self.ends_at
        if not may_be_answered or not in_time or self._is_abandoned:
            return False
        self._pending.extendleft(reversed(chunk.halves()))
        return True

    def outcomes(self) -> list[Outcome]:
        """All outcomes, or with `on_error="raise"` the first error in the caller's order."""
        if self._on_error == "raise":
            for outcome in self._outcomes:
                if isinstance(outcome, ClientError):
                    raise outcome
        return [outcome for outcome in self._outcomes if outcome is not None]

    def _stop_on(self, errors: Iterable[ClientError]) -> None:
        if self._on_error == "raise" and any(True for _ in errors):
            self.abandon()


def _rejection(outcomes: Sequence[Outcome]) -> UnavailableError | None:
    """The reason why all rows of a chunk, or none, were rejected for now: by the server, or for a late answer."""
    first = outcomes[0]
    return first if isinstance(first, UnavailableError) and first.retry_after_s is not None else None


def _pace(items: Sequence[Request | ClientError], rows_per_request: int, concurrency: int) -> Pace:
    deadlines = [item.deadline_ms for item in items if isinstance(item, Request) and item.deadline_ms is not None]
    deadline_s = min(deadlines) / 1000 if deadlines else None
    return Pace(rows_per_request, rows_per_request * concurrency, deadline_s)


def _checked(item: RequestLike, deadline_ms: int | None, level: str | None) -> Request | ClientError:
    """Fill in the call's defaults; a malformed request becomes its error."""
    try:
        request = item if isinstance(item, Request) else _from_tuple(item)
        return dataclasses.replace(
            request,
            deadline_ms=deadline_ms if request.deadline_ms is None else request.deadline_ms,
            level=level if request.level is None else request.level,
        )
    except ClientError as error:
        return error


def _from_tuple(item: tuple[str, str] | tuple[str, str, str]) -> Request:
    if not isinstance(item, tuple) or len(item) not in (2, 3):
        raise InvalidRequestError("a request is a Request or a tuple (hplm, text) or (hplm, text, text_pair)")
    return Request(*item)


def _chunks(items: Sequence[Request | ClientError], rows_per_request: int) -> Iterable[Chunk]:
    groups: dict[tuple[str, int | None, str | None], list[tuple[int, Request]]] = {}
    for position, item in enumerate(items):
        if isinstance(item, Request):
            groups.setdefault((item.hplm, item.deadline_ms, item.level), []).append((position, item))
    for group in groups.values():
        for start in range(0, len(group), rows_per_request):
            positions, requests = zip(*group[start : start + rows_per_request])
            yield Chunk(positions, requests)

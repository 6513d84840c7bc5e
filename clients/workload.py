"""Many requests at once: what goes together in one Triton request, and whose answer goes where."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from clients.conversation import Outcome
from clients.errors import ClientError, InvalidRequestError
from clients.limits import check_timeout
from clients.request import Request

OnError = Literal["raise", "return"]
RequestLike = Request | tuple[str, str] | tuple[str, str, str]


@dataclass(frozen=True)
class Chunk:
    """Requests with the same hPLM and parameters, and their places in the caller's list."""

    places: tuple[int, ...]
    requests: tuple[Request, ...]


class Workload:
    """Hands out chunks to any number of workers and collects the outcomes in the caller's order.

    Safe between threads: each of its steps is one operation of a deque or a list slot.
    """

    def __init__(
        self,
        requests: Iterable[RequestLike],
        rows_per_request: int,
        on_error: OnError,
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
        self._stop_on(item for item in checked if isinstance(item, ClientError))

    def __len__(self) -> int:
        return len(self._pending)

    def take(self) -> Chunk | None:
        try:
            return self._pending.popleft()
        except IndexError:
            return None

    def settle(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> None:
        for place, outcome in zip(chunk.places, outcomes, strict=True):
            self._outcomes[place] = outcome
        self._stop_on(outcome for outcome in outcomes if isinstance(outcome, ClientError))

    def abandon(self) -> None:
        """Hand out nothing more."""
        self._pending.clear()

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


def _checked(item: RequestLike, deadline_ms: int | None, level: str | None) -> Request | ClientError:
    """The request with the call's defaults filled in, or what is wrong with it."""
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
    for place, item in enumerate(items):
        if isinstance(item, Request):
            groups.setdefault((item.hplm, item.deadline_ms, item.level), []).append((place, item))
    for group in groups.values():
        for start in range(0, len(group), rows_per_request):
            places, requests = zip(*group[start : start + rows_per_request], strict=True)
            yield Chunk(places, requests)

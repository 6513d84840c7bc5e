"""Many requests at once: which rows share a Triton request, and the order of their outcomes."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Union

from hplm_client.conversation import Outcome
from hplm_client.errors import ClientError, InvalidRequestError
from hplm_client.limits import check_timeout
from hplm_client.request import Request

OnError = Literal["raise", "return"]
RequestLike = Union[Request, tuple[str, str], tuple[str, str, str]]


@dataclass(frozen=True)
class Chunk:
    """Requests with the same hPLM and parameters, and their positions in the caller's list."""

    positions: tuple[int, ...]
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
        for position, outcome in zip(chunk.positions, outcomes):
            self._outcomes[position] = outcome
        self._stop_on(outcome for outcome in outcomes if isinstance(outcome, ClientError))

    def abandon(self) -> None:
        """Hand out no further chunk."""
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

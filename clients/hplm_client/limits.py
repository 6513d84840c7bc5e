"""Timeouts, deadlines and the retry policy."""

from __future__ import annotations

import random
import reprlib
import threading
import time
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

from hplm_client.errors import InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Self

_DEFAULT_TIMEOUT_S = 30.0
_GRACE_S = 1.0
_LONGEST_DEADLINE_MS = 86_400_000
_LONGEST_TIMEOUT_S = 30 * 86400.0
"""The longest that sockets and gRPC can count; stands for no limit."""
_MOST_DOUBLINGS = 30
"""Longer pauses are no pauses, and a thousand doublings are more than a number can hold."""

_MOST_RETRIES = 10.0
_RETRIES_PER_ANSWER = 0.1


@dataclass(frozen=True)
class RetryPolicy:
    """Pauses that double from retry to retry, with jitter, so that many clients do not return at the same moment."""

    retries: int = 2
    first_pause_s: float = 0.05
    first_unconnected_pause_s: float = 0.5
    """After a connection that could not be made: a gateway that is restarted is back after some tenths of a second."""
    longest_pause_s: float = 1.0

    def __post_init__(self) -> None:
        if type(self.retries) is not int or self.retries < 0:
            raise InvalidRequestError(f"retries must be 0 or more, not {self.retries!r}")

    def pause_s(self, failures: int, retry_after_s: float | None = None) -> float:
        """Return how long to wait before a retry: as long as the server says, if it does, and up to a half more."""
        if retry_after_s is not None:
            return jittered(retry_after_s)
        ceiling_s = self._ceiling_s(self.first_pause_s, failures)
        return random.uniform(ceiling_s / 2, ceiling_s)

    def unconnected_pause_s(self, failures: int, left_s: float) -> float:
        """Return how long to wait after a connection that could not be made.

        It is at most half of the time that is left, unless that is shorter than the pause after other failures.
        """
        ceiling_s = min(self._ceiling_s(self.first_unconnected_pause_s, failures), left_s / 2)
        ceiling_s = max(ceiling_s, self._ceiling_s(self.first_pause_s, failures))
        return random.uniform(ceiling_s / 2, ceiling_s)

    def _ceiling_s(self, first_pause_s: float, failures: int) -> float:
        return min(self.longest_pause_s, first_pause_s * 2.0 ** min(failures, _MOST_DOUBLINGS))


class RetryBudget:
    """Keeps the retries of a client to a part of its requests, so that retries never become most of a server's load.

    A few may be made at any time. Each request that ends well allows a tenth of another one.
    """

    def __init__(self) -> None:
        self._left = _MOST_RETRIES
        self._lock = threading.Lock()

    def note_answer(self) -> None:
        with self._lock:
            self._left = min(_MOST_RETRIES, self._left + _RETRIES_PER_ANSWER)

    def take(self) -> bool:
        """Return whether another retry may be made, and count it."""
        with self._lock:
            if self._left < 1.0:
                return False
            self._left -= 1.0
            return True


def jittered(retry_after_s: float) -> float:
    """Add up to a half, so that callers that were told the same do not come back at the same moment."""
    return random.uniform(retry_after_s, 1.5 * retry_after_s)


@dataclass(frozen=True)
class Window:
    """Time limits of one exchange: its own timeout, the server-side deadline, and the end of the whole call."""

    ends_at: float
    deadline_at: float | None

    @classmethod
    def opening_now(cls, timeout_s: float | None, deadline_ms: int | None, call_ends_at: float | None) -> Self:
        """Start now; without a timeout, end one second after the deadline, or after 30 s where there is none."""
        now = time.monotonic()
        deadline_s = None if deadline_ms is None else deadline_ms / 1000
        if timeout_s is None:
            timeout_s = _DEFAULT_TIMEOUT_S if deadline_s is None else deadline_s + _GRACE_S
        timeout_s = min(timeout_s, _LONGEST_TIMEOUT_S)
        ends_at = now + timeout_s if call_ends_at is None else min(now + timeout_s, call_ends_at)
        return cls(ends_at, None if deadline_s is None else now + deadline_s)

    def remaining_s(self) -> float:
        return self.ends_at - time.monotonic()

    def remaining_deadline_ms(self) -> int | None:
        if self.deadline_at is None:
            return None
        return max(1, round((self.deadline_at - time.monotonic()) * 1000))

    def require_in_time(self) -> None:
        """Reject an answer that arrived after its deadline."""
        late_s = 0.0 if self.deadline_at is None else time.monotonic() - self.deadline_at
        if late_s > 0:
            message = f"the deadline passed {1000 * late_s:.0f} ms before the answer was here"
            raise UnavailableError(message, reason="late_on_the_way", retry_after_s=late_s)

    def left_s(self) -> float:
        """Return the time until the timeout or the deadline, whichever comes first."""
        ends_at = self.ends_at if self.deadline_at is None else min(self.ends_at, self.deadline_at)
        return ends_at - time.monotonic()

    def allows_pause(self, pause_s: float) -> bool:
        """Return whether time is left for a retry after such a pause."""
        return pause_s < self.left_s()


def check_timeout(timeout_s: float | None) -> None:
    if timeout_s is None:
        return
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, Real) or not timeout_s > 0:
        raise InvalidRequestError(f"timeout_s must be a positive number of seconds, not {reprlib.repr(timeout_s)}")


def check_deadline(deadline_ms: int | None, hplm: str | None = None) -> None:
    if deadline_ms is None:
        return
    if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, Integral) or deadline_ms <= 0:
        shown = reprlib.repr(deadline_ms)
        raise InvalidRequestError(f"deadline_ms must be a positive whole number, not {shown}", hplm)
    if deadline_ms > _LONGEST_DEADLINE_MS:
        raise InvalidRequestError(f"deadline_ms is at most {_LONGEST_DEADLINE_MS}, a day", hplm)


def check_count(name: str, count: int) -> int:
    if type(count) is not int or count < 1:
        raise InvalidRequestError(f"{name} must be 1 or more, not {count!r}")
    return count

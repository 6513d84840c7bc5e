"""Estimates when the requests of a call arrived, which Triton does not say."""

from __future__ import annotations

_AT_ONCE_US = 5_000


class CallTimes:
    """Begin and end of the last call.

    The requests of a call that begins at once after another may have arrived since the other's begin. They did not
    arrive earlier, or they would have been part of that call, unless it was full, or Triton does not batch.
    """

    def __init__(self) -> None:
        self._began_us: int | None = None
        self._longest_wait_us = 0
        self._ended_us = 0

    def begin(self, now_us: int) -> None:
        before_us, self._began_us = self._began_us, now_us
        is_at_once = before_us is not None and now_us - self._ended_us < _AT_ONCE_US
        self._longest_wait_us = now_us - before_us if before_us is not None and is_at_once else 0

    def end(self, now_us: int) -> None:
        self._ended_us = now_us

    def deadline_us(self, in_us: int) -> int:
        """Return when a request of this call is due that is to be answered so long after its arrival.

        It is taken to have waited for half of the longest time, but for no more than half of its deadline: one that is
        shorter than a call can be met where the request has just arrived.
        """
        if self._began_us is None:
            raise ValueError("no call has begun")
        return self._began_us + in_us - min(self._longest_wait_us, in_us) // 2

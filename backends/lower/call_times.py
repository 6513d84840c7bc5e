"""When the requests of a call came: Triton does not tell."""

from __future__ import annotations

_AT_ONCE_US = 5_000


class CallTimes:
    """Requests of a call that begins at once after the one before may have come since that one began; not earlier.

    Else they would have been part of it, unless it was full.
    """

    def __init__(self) -> None:
        self._began_us: int | None = None
        self._ended_us = 0

    def begin(self, now_us: int) -> int:
        """Since when the requests of this call may have waited."""
        before_us, self._began_us = self._began_us, now_us
        return now_us if before_us is None or now_us - self._ended_us >= _AT_ONCE_US else before_us

    def end(self, now_us: int) -> None:
        self._ended_us = now_us

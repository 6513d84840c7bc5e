"""A bound on how many of something there are at once."""

from __future__ import annotations

import threading


class Allowance:
    """A shared budget that any thread may take from, down to zero."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._lock = threading.Lock()

    def take(self, count: int) -> int:
        """Take up to `count`; return how many were left to take."""
        with self._lock:
            granted = min(count, self._left)
            self._left -= granted
            return granted

    def give_back(self, count: int) -> None:
        with self._lock:
            self._left += count

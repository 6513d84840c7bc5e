"""How many of something there may be at once, whoever asks for them."""

from __future__ import annotations

import threading


class Allowance:
    """Whoever takes from it gets what is left at most; any thread may."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._lock = threading.Lock()

    def take(self, count: int) -> int:
        """How many of `count` are granted."""
        with self._lock:
            granted = min(count, self._left)
            self._left -= granted
            return granted

    def give_back(self, count: int) -> None:
        with self._lock:
            self._left += count

    def renew(self) -> None:
        with self._lock:
            self._left = self._limit

"""The batch size that the device's memory has room for, learned from batches that did not fit."""

from __future__ import annotations

import time
from dataclasses import replace

from backends.scheduling.settings import Capacity

_KEPT_S = 60.0


class MemoryLimit:
    """Halves a batch's tokens after each one that ran out of memory, for a minute; then full batches are tried again.

    Written and read under the serve loop's lock.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._limited = capacity
        self._until_s = 0.0

    @property
    def capacity(self) -> Capacity:
        return self._limited if time.monotonic() < self._until_s else self._capacity

    def note_failure(self, num_tokens: int) -> None:
        """Remember that a batch of this many tokens did not fit."""
        most = min(self.capacity.max_tokens, max(1, num_tokens // 2))
        self._limited = replace(self._capacity, max_tokens=most)
        self._until_s = time.monotonic() + _KEPT_S

"""Failures that stay the answer for a while: a damaged file, read again for each request, would hold up the others."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

KEPT_S = 30.0


class Failures:
    """What went wrong with which thing, and until when that is its answer. Safe among threads."""

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._by_key: dict[Hashable, tuple[float, Exception]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def remembered(self, key: Hashable) -> Iterator[None]:
        """Do something that may fail; where it did a moment ago, its error comes again at once."""
        self._raise_known(key)
        try:
            yield
        except Exception as error:
            self._remember(key, error)
            raise
        with self._lock:
            self._by_key.pop(key, None)

    def _raise_known(self, key: Hashable) -> None:
        with self._lock:
            known = self._by_key.get(key)
        if known is not None and time.monotonic() < known[0]:
            raise copy.copy(known[1])

    def _remember(self, key: Hashable, error: Exception) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._by_key = {other: known for other, known in self._by_key.items() if now_s < known[0]}
            # A copy, which holds none of the memory that the trace of the failure does.
            self._by_key[key] = now_s + self._kept_s, copy.copy(error)

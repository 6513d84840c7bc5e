"""Failures of files, remembered for a while: reading damaged files for each request would delay the others."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from backends.errors import FileError

_KEPT_S = 30.0


class Failures:
    """Recent errors by key; each is raised again for a while instead of another attempt. Thread-safe."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, tuple[float, FileError]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def remembered(self, key: Hashable) -> Iterator[None]:
        """Run a block that reads files; raises the last error of the same key at once while it is remembered."""
        self._raise_known(key)
        try:
            yield
        except FileError as error:
            self._remember(key, error)
            raise

    def _raise_known(self, key: Hashable) -> None:
        with self._lock:
            known = self._by_key.get(key)
        if known is not None and time.monotonic() < known[0]:
            raise copy.copy(known[1])

    def _remember(self, key: Hashable, error: FileError) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._by_key = {other: known for other, known in self._by_key.items() if now_s < known[0]}
            # A copy, which holds none of the memory that the trace of the failure does.
            self._by_key[key] = now_s + _KEPT_S, copy.copy(error)

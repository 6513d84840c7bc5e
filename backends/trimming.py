"""The return of freed memory to the system, every half minute.

Batches of different sizes leave holes in the heap between objects that stay, and the C library keeps them. After a
minute of mixed lengths the holes can be several times the live memory. Returning them takes 20 ms and does not slow the
next batches.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable

LOGGER = logging.getLogger(__name__)
_EVERY_S = 30.0


def trim() -> None:
    """Return free memory to the system, if the C library has a call for it."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class Trimming:
    """A thread that releases unused objects and trims, at intervals, until it is closed."""

    def __init__(self, release_unused: Callable[[], None] | None = None, every_s: float = _EVERY_S) -> None:
        self._release_unused = release_unused
        self._every_s = every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trimming", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                if self._release_unused is not None:
                    self._release_unused()
                trim()
            except Exception:
                LOGGER.exception("memory could not be given back")

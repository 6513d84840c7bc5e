"""Callers are told what went wrong on a thread of its own.

Triton takes a response only when it gets to it, half a millisecond or several under load. Whoever refuses a request has
others to see to meanwhile: to those behind it, or to the batch that is to be staged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from backends.errors import HplmError

LOGGER = logging.getLogger(__name__)
_MOST_UNTOLD = 1024
"""Beyond, whoever refuses is held up by it, and with it what brings more to refuse."""

Tell = Callable[[HplmError], None]


class Telling:
    """Tells each caller in the order in which they were refused."""

    def __init__(self) -> None:
        self._untold: SimpleQueue[tuple[Tell, HplmError] | None] = SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)
        self._thread.start()

    def tell(self, tell: Tell, error: HplmError) -> None:
        """Where too many wait to be told, and once it is closed, the thread that refuses tells them itself."""
        with self._closing:
            if not self._closed and self._untold.qsize() < _MOST_UNTOLD:
                self._untold.put((tell, error))
                return
        tell(error)

    def close(self) -> None:
        """Return once all have been told."""
        with self._closing:
            self._closed = True
            self._untold.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (untold := self._untold.get()) is not None:
            tell, error = untold
            try:
                tell(error)
            except Exception:
                LOGGER.exception("a caller could not be told: %s", error)

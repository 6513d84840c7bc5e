"""A thread of its own that sends errors to callers.

Triton takes a response only when its scheduler gets to it: after half a millisecond, or several under load. The thread
that rejects a request has other work: the requests behind it, or the batch to be staged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from backends.errors import HplmError

LOGGER = logging.getLogger(__name__)
_MAX_UNSENT = 1024
"""Above this number the rejecting thread sends its errors itself, which slows the intake of further requests."""

Respond = Callable[[HplmError], None]


class ErrorSender:
    """Sends errors in the order of the rejections."""

    def __init__(self) -> None:
        self._unsent: SimpleQueue[tuple[Respond, HplmError] | None] = SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="error-sender", daemon=True)
        self._thread.start()

    def send(self, respond: Respond, error: HplmError) -> None:
        """Queue an error. The calling thread sends it itself if the queue is full or closed."""
        with self._closing:
            if not self._closed and self._unsent.qsize() < _MAX_UNSENT:
                self._unsent.put((respond, error))
                return
        respond(error)

    def close(self) -> None:
        """Return once all errors are sent."""
        with self._closing:
            self._closed = True
            self._unsent.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (unsent := self._unsent.get()) is not None:
            respond, error = unsent
            try:
                respond(error)
            except Exception:
                LOGGER.exception("an error could not be sent: %s", error)

"""Threads of their own that send answers and errors to callers.

Triton takes a response only when its scheduler gets to it: after half a millisecond, or several under load. The thread
that has an answer, or rejects a request, has other work: the next batch, or the requests behind it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

LOGGER = logging.getLogger(__name__)
_MAX_UNSENT = 1024
"""Above this number the calling thread sends itself, which slows the intake of further requests."""

Answer = TypeVar("Answer")


class Senders(Generic[Answer]):
    """Send answers in the order of their coming, as many at once as there are threads.

    Args:
        threads: Number of threads; by default the answers are sent one after the other.
    """

    def __init__(self, threads: int = 1) -> None:
        self._unsent: SimpleQueue[tuple[Callable[[Answer], None], Answer] | None] = SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"sender-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, respond: Callable[[Answer], None], answer: Answer) -> None:
        """Queue an answer. The calling thread sends it itself if the queue is full or closed."""
        with self._closing:
            if not self._closed and self._unsent.qsize() < _MAX_UNSENT:
                self._unsent.put((respond, answer))
                return
        respond(answer)

    def close(self) -> None:
        """Return once all answers are sent."""
        with self._closing:
            self._closed = True
            for _ in self._threads:
                self._unsent.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (unsent := self._unsent.get()) is not None:
            respond, answer = unsent
            try:
                respond(answer)
            except Exception:
                LOGGER.exception("an answer could not be sent: %s", answer)

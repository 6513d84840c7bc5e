"""Threads of their own that send answers and errors to callers.

Triton takes a response only when its scheduler gets to it: after half a millisecond, or several under load. The thread
that has an answer, or rejects a request, has other work: the next batch, or the requests behind it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from backends.clock import now_us
from backends.errors import HplmError

LOGGER = logging.getLogger(__name__)
STUCK_US = 2_000_000
"""A sending that takes longer hangs."""

Answer = TypeVar("Answer")


class Senders(Generic[Answer]):
    """Threads that begin to send answers in the order in which they come, as many at once as there are threads.

    Args:
        threads: Number of threads.
        most_unsent: Answers that may wait. Beyond it the calling thread sends itself, so it does not run ahead.
    """

    def __init__(self, threads: int = 1, most_unsent: int = 1024) -> None:
        self._most_unsent = most_unsent
        self._unsent: SimpleQueue[tuple[Callable[[Answer], None], Answer] | None] = SimpleQueue()
        self._began_us: dict[str, int] = {}
        """When the sending that a thread is at has begun."""
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
            if not self._closed and self._unsent.qsize() < self._most_unsent:
                self._unsent.put((respond, answer))
                return
        respond(answer)

    def are_stuck(self) -> bool:
        """Whether a thread hangs while it sends."""
        now = now_us()
        return any(now - began_us > STUCK_US for began_us in list(self._began_us.values()))

    def close(self, timeout_s: float | None = None) -> None:
        """Return once all answers are sent, or after that time."""
        with self._closing:
            self._closed = True
            for _ in self._threads:
                self._unsent.put(None)
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if ends_at is None else max(0.0, ends_at - time.monotonic()))

    def _run(self) -> None:
        name = threading.current_thread().name
        while (unsent := self._unsent.get()) is not None:
            respond, answer = unsent
            self._began_us[name] = now_us()
            try:
                respond(answer)
            except Exception:
                # Other answers are their callers' own.
                LOGGER.exception("an answer could not be sent: %s", answer if isinstance(answer, HplmError) else "")
            self._began_us.pop(name)

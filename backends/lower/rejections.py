"""Rejections that wait a moment before they are told, so that callers who ask again at once do not take the processor.

Each waits its turn: a tenth of a second where twenty wait. Whoever is rejected alone hears it within milliseconds.
Those whose turns come within milliseconds of each other are told together, so that the thread wakes for them once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from backends.errors import HplmError

Respond = Callable[[HplmError], None]
_TURN_S = 0.005
_LONGEST_S = 0.25


class Rejections:
    """Tells rejections in their order, on a thread of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, HplmError, Respond]] = deque()
        """The moment at which each is told, on the monotonic clock."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="rejections", daemon=True)
        self._thread.start()

    def add(self, error: HplmError, respond: Respond) -> None:
        """Tell this rejection through `respond` when its turn comes; at once where this is closed."""
        with self._changed:
            if not self._is_closed:
                delay_s = min(_LONGEST_S, _TURN_S * (len(self._waiting) + 1))
                self._waiting.append((time.monotonic() + delay_s, error, respond))
                if len(self._waiting) == 1:
                    self._changed.notify()
                return
        respond(error)

    def close(self) -> None:
        """Tell all that wait, and return once all have been told."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (due := self._take()) is not None:
            for error, respond in due:
                respond(error)

    def _take(self) -> list[tuple[HplmError, Respond]] | None:
        """Wait for those whose turn it is; none once this is closed and empty."""
        with self._changed:
            while not self._is_closed:
                if not self._waiting:
                    self._changed.wait()
                elif (left_s := self._waiting[0][0] - time.monotonic()) > 0:
                    self._changed.wait(max(left_s, _TURN_S))
                else:
                    break
            due = []
            now_s = time.monotonic()
            while self._waiting and (self._is_closed or self._waiting[0][0] <= now_s):
                _, error, respond = self._waiting.popleft()
                due.append((error, respond))
            return due or None

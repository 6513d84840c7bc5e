"""How often a server is restarted: at once after a long life, later after short ones, and not for ever."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from builder.serving.errors import ServerStartError

MAX_RESTARTS = 5
WINDOW_S = 600.0
_SHORT_LIFE_S = 3.0
_MAX_DELAY_S = 30.0
_MOST_DOUBLINGS = 5
"""More would not wait longer."""


class Restarts:
    """Counts restarts within the last ten minutes, and those in a row that brought no server which lived.

    A server may take so long to load that ten minutes hold too few restarts.

    Args:
        most: Restarts within ten minutes, and in a row; with 0 there are none.
        clock: Seconds that only grow.
    """

    def __init__(self, most: int = MAX_RESTARTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._at_s: deque[float] = deque()
        self._in_a_row = 0
        """Short lives."""
        self._in_vain = 0
        """Restarts since the last life that was not short."""
        self._loaded_s: float | None = None
        self._ready_s: float | None = None

    def note_loaded(self) -> None:
        """Triton has loaded the models; whether they answer is yet to be seen."""
        self._loaded_s = self._clock()

    def note_ready(self) -> None:
        """The server is ready; what is said later of the same one changes nothing."""
        if self._ready_s is None:
            self._ready_s = self._clock()

    def next_delay_s(self, reason: str) -> float:
        """Count one more restart and return the time to wait before it: after short lives 0, 1, 2, 4 … s.

        Raises:
            ServerStartError: There were as many as there may be.
        """
        now = self._clock()
        while self._at_s and now - self._at_s[0] > WINDOW_S:
            self._at_s.popleft()
        was_short = self._ready_s is None or now - self._ready_s < _SHORT_LIFE_S
        lived_long = self._loaded_s is not None and now - self._loaded_s > WINDOW_S
        self._in_vain = self._in_vain if was_short and not lived_long else 0
        if len(self._at_s) >= self._most or self._in_vain >= self._most:
            raise ServerStartError(self._end(reason))
        self._at_s.append(now)
        self._in_vain += 1
        self._in_a_row = self._in_a_row + 1 if was_short else 0
        self._loaded_s = self._ready_s = None
        if self._in_a_row < 2:
            return 0.0
        return min(2.0 ** min(self._in_a_row - 2, _MOST_DOUBLINGS), _MAX_DELAY_S)

    @property
    def count(self) -> str:
        return f"restart {len(self._at_s)} of at most {self._most} within {WINDOW_S / 60:g} minutes"

    def _end(self, reason: str) -> str:
        if not self._most:
            return reason
        within = f"{self._most} times within {WINDOW_S / 60:g} minutes"
        if len(self._at_s) < self._most:
            within = f"{self._most} times in a row and never lived for {_SHORT_LIFE_S:g} s"
        return f"{reason}; it was restarted {within} and is given up"

"""How many threads compute a batch: as many as were fastest of late.

Threads that share a product wait for each other at its end. Where others need the processor all the time, such as
whoever takes thousands of short requests in, each of them is held up now and then, and all of them wait; then one
thread less computes faster. Long rows that come seldom are another matter. So now and then the other number is tried.
"""

from __future__ import annotations

import statistics
from collections import deque

_TRY_EVERY = 12
_REMEMBERED = 5
_CLEARLY = 0.95
"""What a number must take of the other's time to be preferred to it: so that chance changes nothing."""


class Team:
    """All threads, or one less where that may be.

    Args:
        most: Threads there are.
        may_spare_one: Otherwise it is always all of them.
    """

    def __init__(self, most: int, may_spare_one: bool) -> None:
        self._sizes = (most, most - 1) if most > 1 and may_spare_one else (most,)
        self._took = {size: deque[float](maxlen=_REMEMBERED) for size in self._sizes}
        self._preferred = most
        self._batches = 0

    def size(self) -> int:
        """For the next batch."""
        self._batches += 1
        others = [size for size in self._sizes if size != self._preferred]
        return others[0] if others and self._batches % _TRY_EVERY == 0 else self._preferred

    def note(self, size: int, took_us: float, predicted_us: float) -> None:
        """What a batch took; batches are compared by what they were predicted to take."""
        if predicted_us <= 0:
            return
        self._took[size].append(took_us / predicted_us)
        if len(self._sizes) > 1 and all(self._took.values()):
            other = next(each for each in self._sizes if each != self._preferred)
            if self._median(other) < _CLEARLY * self._median(self._preferred):
                self._preferred = other

    def _median(self, size: int) -> float:
        return statistics.median(self._took[size])

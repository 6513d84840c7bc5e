"""How many threads compute a batch: as many as were fastest of late.

Threads that share a product wait for each other at its end. Where others need the processor all the time, such as
whoever takes thousands of short requests in, each of them is held up now and then, and all of them wait; then one
thread less computes faster. Long rows that come seldom are another matter. So now and then the other number is tried,
and the more seldom the more often it has lost.
"""

from __future__ import annotations

import statistics
from collections import deque

_TRY_EVERY, _TRY_EVERY_AT_MOST = 12, 384
_REMEMBERED = 5
_CLEARLY = 0.95
"""What a number must take of the other's time to be preferred to it: so that chance changes nothing."""
_OTHERWISE = 1.25
"""The factor by which batches take longer or shorter than they did before what was known of both counts no more."""


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
        self._try_every = _TRY_EVERY
        self._until_try = _TRY_EVERY
        self._level: float | None = None

    @property
    def preferred(self) -> int:
        """The number with which batches are done soonest, as far as is known."""
        return self._preferred

    def size(self, may_try: bool = True) -> int:
        """For the next batch. One that cannot bear to take twice as long is nothing to try another number with."""
        self._until_try -= 1
        if self._until_try > 0 or len(self._sizes) == 1 or not may_try:
            return self._preferred
        self._until_try = self._try_every
        return self._other

    def note(self, size: int, took_us: float, predicted_us: float) -> None:
        """What a batch took; batches are compared by what they were predicted to take."""
        if predicted_us <= 0:
            return
        self._took[size].append(took_us / predicted_us)
        if len(self._sizes) == 1 or not all(self._took.values()):
            return
        ours, others = self._median(self._preferred), self._median(self._other)
        if others < _CLEARLY * ours:
            self._preferred = self._other
            self._try_soon(others)
        elif size != self._preferred:
            lost_clearly = ours < _CLEARLY * others
            self._try_every = min(2 * self._try_every, _TRY_EVERY_AT_MOST) if lost_clearly else _TRY_EVERY
            self._until_try, self._level = self._try_every, ours
        elif self._level is not None and not 1 / _OTHERWISE < ours / self._level < _OTHERWISE:
            self._try_soon(ours)

    @property
    def _other(self) -> int:
        return next(size for size in self._sizes if size != self._preferred)

    def _try_soon(self, level: float) -> None:
        self._try_every = self._until_try = _TRY_EVERY
        self._level = level

    def _median(self, size: int) -> float:
        return statistics.median(self._took[size])

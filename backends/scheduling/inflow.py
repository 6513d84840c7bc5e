"""What is let in per time, of each kind: the best guess at what will come next."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from backends.scheduling.backlog import Load

Floats = npt.NDArray[np.float64]

_MEMORY_US = 500_000.0
_LEAST_WATCHED_US = 200_000.0
"""Who comes together at one moment does not come so often."""
_WEIGHED_ANEW_US = 20 * _MEMORY_US
"""So that weights stay within what numbers hold, and what is long gone becomes nothing at all."""


class Inflow:
    """Sums over the last half second or so, whose older parts count less and less.

    Instead of weighing all that came before less with each row, each row weighs more than those before it.

    They begin anew with whoever finds nobody there: what comes after a pause says nothing of how often there are some,
    and a flood after quiet times is seen as soon as it is there.
    """

    def __init__(self, num_kinds: int) -> None:
        self._sums: Floats = np.zeros((3, num_kinds))
        self._work_us = 0.0
        self._since_us = 0
        self._weighed_us = 0
        """What comes at this time weighs 1."""

    def begin(self, now_us: int) -> None:
        self._sums[:] = 0.0
        self._work_us = 0.0
        self._since_us = self._weighed_us = now_us

    def add(self, kind: int, row: Load, now_us: int) -> None:
        if now_us - self._weighed_us > _WEIGHED_ANEW_US:
            self._sums *= self._left(now_us)
            self._work_us *= self._left(now_us)
            self._weighed_us = now_us
        weight = 1.0 / self._left(now_us)
        self._sums[:, kind] += (weight * row.rows, weight * row.tokens, weight * row.work_us)
        self._work_us += weight * row.work_us

    def rate(self, now_us: int) -> float:
        """Microseconds of work per microsecond."""
        return self._work_us * self._per_us(now_us)

    def all_during(self, time_us: float, now_us: int) -> Load:
        """What would come of all kinds in so long."""
        rows, tokens, work_us = (self._sums.sum(axis=1) * (max(0.0, time_us) * self._per_us(now_us))).tolist()
        return Load(rows, tokens, work_us)

    def during(self, times_us: Floats, now_us: int) -> Load:
        """What would come if each kind came for so long, as it did of late.

        Shape:
            times_us: `[num_kinds]`.
        """
        rows, tokens, work_us = ((self._sums @ times_us) * self._per_us(now_us)).tolist()
        return Load(rows, tokens, work_us)

    def _per_us(self, now_us: int) -> float:
        """By what sums are to be multiplied: their weights over all of the time that was watched add up to less."""
        watched = 1.0 - math.exp(-max(_LEAST_WATCHED_US, now_us - self._since_us) / _MEMORY_US)
        return self._left(now_us) / (_MEMORY_US * watched)

    def _left(self, now_us: int) -> float:
        """Of the weight of what came when rows weighed 1."""
        return math.exp((self._weighed_us - now_us) / _MEMORY_US)

"""What something takes lately, whatever a single slow time was."""

from __future__ import annotations

from collections import deque
from statistics import median_low

_KEPT = 8


class RecentTimes:
    """The median of the latest times, in microseconds.

    A mean would remember the first call to a domain, which opens its files and may take a hundred times the usual, and
    requests would be rejected for it. The first time counts beside a zero for the same reason.
    """

    def __init__(self) -> None:
        self._times_us = deque([0.0], maxlen=_KEPT)
        self.usual_us = 0.0

    def note(self, took_us: float) -> None:
        self._times_us.append(took_us)
        self.usual_us = median_low(self._times_us)

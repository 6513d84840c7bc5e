"""How long requests are on their way: from where the server first read them to the queue of the engine."""

from __future__ import annotations

from collections import deque

_REMEMBERED = 16
_REMEMBERED_US = 1_000_000
_STANDING_US = 200_000
"""What is on the way for longer stands in a queue in front of the engine, where nobody chooses and nobody gains."""
_STANDING_WEIGHT = 5.0
"""So each microsecond of it counts as several, and fewer come until it is gone."""


class Intake:
    """The least of the latest few of the last second: whoever comes next is on the way for as long, or longer.

    It grows where more is asked than can be taken in. Where all are refused for it, nobody comes, and it is forgotten.
    """

    def __init__(self) -> None:
        self._latest: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        """When they came, and how long they had been on the way."""

    def least_us(self, now_us: int) -> int:
        return min((taken_us for came_us, taken_us in self._latest if came_us > now_us - _REMEMBERED_US), default=0)

    def counted_us(self, now_us: int) -> float:
        """What whoever could come is told of it."""
        least_us = self.least_us(now_us)
        return least_us + (_STANDING_WEIGHT - 1.0) * max(0, least_us - _STANDING_US)

    def note(self, read_us: int, now_us: int) -> None:
        self._latest.append((now_us, max(0, now_us - read_us)))

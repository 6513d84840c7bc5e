"""How long requests are on their way: from where the server first read them to the queue of the engine."""

from __future__ import annotations

from collections import deque

_REMEMBERED = 16


class Intake:
    """The least of the latest few: whoever comes next is on the way for as long, or longer.

    It grows where more is asked than can be taken in, and counts for nothing once the engine has nothing left to do.
    """

    def __init__(self) -> None:
        self._latest_us: deque[int] = deque(maxlen=_REMEMBERED)

    @property
    def least_us(self) -> int:
        return min(self._latest_us, default=0)

    def note(self, read_us: int, now_us: int) -> None:
        self._latest_us.append(max(0, now_us - read_us))

    def forget(self) -> None:
        self._latest_us.clear()

"""By how much longer predictions are taken than they are, so that nearly all promises are kept."""

from __future__ import annotations

_STEP = 0.01
"""For a broken promise: the forty rows that the first batch of a flood breaks make predictions longer by two fifths."""
_BROKEN_PART = 0.005
"""Of promises, that may be broken."""
_MOST_MORE = 0.75
"""Of what is predicted, however many are broken."""
_HALF_LIFE_US = 600e6


class Caution:
    """A factor that each broken promise raises, and two hundred kept ones lower again.

    What batches take is learned within a few of them (`correction`); this is about all else that predictions leave out,
    such as a machine that others slow down now and then. Most promises are broken that were given as a crowd came; so
    the next crowd begins with what the last one ended with, or ten minutes later with half of what that was more.
    """

    def __init__(self, least: float) -> None:
        self._least = self.factor = least
        self._more_in_crowds = 0.0
        self._crowd_us: int | None = None
        """When the last crowd was there last."""
        self._is_after_crowd = False

    def crowd(self, now_us: int) -> None:
        """Requests come in a crowd (`crowd`); until nobody waits, what happens is about it."""
        if not self._is_after_crowd and self._crowd_us is not None:
            self._more_in_crowds *= 0.5 ** ((now_us - self._crowd_us) / _HALF_LIFE_US)
            self.factor = max(self.factor, self._least + self._more_in_crowds)
        self._is_after_crowd = True
        self._crowd_us = now_us

    def rest(self) -> None:
        """Nobody waits: whoever comes next is promised what it was before."""
        self._is_after_crowd = False
        self.factor = self._least

    def kept(self, promises: int) -> None:
        self._change(-_STEP * _BROKEN_PART * promises)

    def broken(self, promises: int) -> None:
        self._change(_STEP * promises)

    def _change(self, by: float) -> None:
        self.factor = min(max(self.factor + by, self._least), self._least + _MOST_MORE)
        if self._is_after_crowd:
            self._more_in_crowds = self.factor - self._least

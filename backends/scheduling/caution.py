"""By how much longer predictions are taken than they are, so that nearly all promises are kept."""

from __future__ import annotations

_STEP = 0.01
"""For a broken promise: the forty rows that the first batch of a flood breaks make predictions longer by two fifths."""
_BROKEN_PART = 0.005
"""Of promises, that may be broken."""
_MOST_MORE = 0.75
"""Of what is predicted, however many are broken."""


class Caution:
    """A factor that each broken promise raises, and two hundred kept ones lower again.

    What batches take is learned within a few of them (`correction`); this is about all else that predictions leave out,
    such as a machine that others slow down now and then. Most promises are broken that were given as a crowd came; so
    the next crowd begins with what the last one ended with.
    """

    def __init__(self, least: float) -> None:
        self._least = self.factor = least
        self._in_crowds = least
        self._is_crowd = False

    def expect(self, is_crowd: bool) -> None:
        """Whether requests come in a crowd from now on (`crowd`)."""
        if is_crowd and not self._is_crowd:
            self.factor = max(self.factor, self._in_crowds)
        self._is_crowd = is_crowd

    def rest(self) -> None:
        """Nobody waits: whoever comes next is promised what it was before."""
        self._is_crowd = False
        self.factor = self._least

    def kept(self, promises: int) -> None:
        self._change(-_STEP * _BROKEN_PART * promises)

    def broken(self, promises: int) -> None:
        self._change(_STEP * promises)

    def _change(self, by: float) -> None:
        self.factor = min(max(self.factor + by, self._least), self._least + _MOST_MORE)
        if self._is_crowd:
            self._in_crowds = self.factor

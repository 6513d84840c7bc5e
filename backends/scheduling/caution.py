"""By how much longer predictions are taken than they are, so that nearly all promises are kept."""

from __future__ import annotations

_STEP = 0.01
"""For a broken promise: the forty rows that the first batch of a flood breaks make predictions longer by two fifths."""
_BROKEN_PART = 0.01
"""Of promises, that may be broken."""
_MOST_MORE = 0.75
"""Of what is predicted, however many are broken."""


class Caution:
    """A factor that each broken promise raises, and a hundred kept ones lower again.

    What batches take is learned within a few of them (`correction`); this is about all else that predictions leave out,
    such as a machine that others slow down now and then.
    """

    def __init__(self, least: float) -> None:
        self._least = self.factor = least

    def rest(self) -> None:
        """Nobody waits: whoever comes next is promised what it was before."""
        self.factor = self._least

    def kept(self, promises: int) -> None:
        self.factor = max(self._least, self.factor - _STEP * _BROKEN_PART * promises)

    def broken(self, promises: int) -> None:
        self.factor = min(self._least + _MOST_MORE, self.factor + _STEP * promises)

"""Whether requests come about as fast as they are answered, behind a queue: taking them in then slows the computing."""

from __future__ import annotations

_FEWEST_ROWS = 8
"""With tiny batches, one row that waits for the next one is no crowd."""


class Crowd:
    """Told of each request that comes while a batch runs, and of the batch's end."""

    def __init__(self) -> None:
        self.is_here = False
        self._came = 0

    def come(self, rows: int, batch_rows: int, waiting: int) -> None:
        """While a batch of `batch_rows` runs: a crowd shows before the batch ends, that there is none only then."""
        self._came += rows
        self.is_here = self.is_here or self._is_one(batch_rows, waiting)

    def end_batch(self, batch_rows: int, waiting: int) -> None:
        self.is_here = self._is_one(batch_rows, waiting)
        self._came = 0

    def _is_one(self, batch_rows: int, waiting: int) -> bool:
        """At light loads a few come during each small batch too, but hardly anybody waits behind it."""
        return min(self._came, waiting) >= max(_FEWEST_ROWS, batch_rows / 2)

"""A count that several threads raise without a lock, and one reads."""

from __future__ import annotations

from itertools import count


class Tally:
    """Python runs `next` of a count as one step, which `+= 1` is not."""

    def __init__(self) -> None:
        self._steps = count()
        self._reads = 0

    def raise_by_one(self) -> None:
        next(self._steps)

    def total(self) -> int:
        """Return how often it was raised; only one thread may ask."""
        total = next(self._steps) - self._reads
        self._reads += 1
        return total

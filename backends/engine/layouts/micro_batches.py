"""Shares of a batch: micro-batches that pass the layers one by one, or side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

_UNITS_PER_SHARE = 8
"""Smallest number of units in a share, so that shares have about the same size."""


@dataclass(frozen=True)
class Sharing:
    """Limits of the shares that a batch is cut into.

    Args:
        side_by_side: Number of shares that are computed at once.
        least_tokens: Smallest share; a smaller batch is cut into fewer shares.
        most_tokens: Approximate size of the largest share; None for no limit.
    """

    side_by_side: int = 1
    least_tokens: int = 1
    most_tokens: int | None = None

    def count(self, num_tokens: int) -> int:
        at_once = min(self.side_by_side, max(1, num_tokens // self.least_tokens))
        if self.most_tokens is None:
            return at_once
        return at_once * max(1, round(num_tokens / (at_once * self.most_tokens)))


def shares(order: Sequence[int], slots: Sequence[int], tokens: Sequence[int], sharing: Sharing) -> list[list[int]]:
    """Cut rows into even shares in this order; one hPLM's rows stay together where possible.

    Args:
        order: Indices of rows; rows of one slot are side by side.
        slots: Slot of each row.
        tokens: Number of tokens of each row, with padding.
        sharing: Limits of the shares.
    """
    total = sum(tokens[index] for index in order)
    count = sharing.count(total)
    if count == 1:
        return [list(order)]
    target = total / count
    result: list[list[int]] = [[]]
    done = 0
    for unit in _units(order, slots, tokens, target / _UNITS_PER_SHARE):
        size = sum(tokens[index] for index in unit)
        # A unit belongs to the share that its middle falls into.
        if result[-1] and done + size / 2 > target * len(result):
            result.append([])
        result[-1] += unit
        done += size
    return result


def _units(order: Sequence[int], slots: Sequence[int], tokens: Sequence[int], most: float) -> Iterator[list[int]]:
    """Yield the rows of each slot together, or one by one if they have more than `most` tokens."""
    for _, of_slot in groupby(order, key=lambda index: slots[index]):
        rows = list(of_slot)
        if sum(tokens[index] for index in rows) <= most:
            yield rows
        else:
            yield from ([index] for index in rows)

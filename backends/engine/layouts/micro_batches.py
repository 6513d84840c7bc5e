"""Batches in shares: micro-batches that pass the layers one by one, or side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

_UNITS_PER_SHARE = 8
"""At least: so that shares come out about even."""


@dataclass(frozen=True)
class Sharing:
    """Into how many shares a batch is cut.

    Args:
        side_by_side: How many are computed at once.
        least_tokens: Of a share; smaller batches are cut less.
        most_tokens: About; None for any.
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
    """Rows in this order, cut into even shares; one hPLM's rows stay together if they can.

    Args:
        order: Rows, those of one slot side by side.
        slots: The slot of each row.
        tokens: What each row takes.
        sharing: How many shares.
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
    """The rows of one slot, or each row alone where they are more than that."""
    for _, of_slot in groupby(order, key=lambda index: slots[index]):
        rows = list(of_slot)
        if sum(tokens[index] for index in rows) <= most:
            yield rows
        else:
            yield from ([index] for index in rows)

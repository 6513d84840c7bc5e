"""Large batches in shares of about two thousand tokens, over which the layers run fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

TOKENS_PER_SHARE = 2048
"""Measured on two cores: BERT-base layers run fastest over 1536 tokens and more. Of 512 to 1400 tokens the library
multiplies narrow matrices on one core only."""


def shares(order: Sequence[int], slots: Sequence[int], tokens: Sequence[int], limit: int | None) -> list[list[int]]:
    """Rows in this order, cut into even shares of about `limit` tokens; one hPLM's rows stay together if they can.

    Args:
        order: Rows, those of one slot side by side.
        slots: The slot of each row.
        tokens: What each row takes.
        limit: None for one share.
    """
    total = sum(tokens[index] for index in order)
    count = 1 if limit is None else max(1, round(total / limit))
    if count == 1:
        return [list(order)]
    target = total / count
    result: list[list[int]] = [[]]
    done = 0
    for unit in _units(order, slots, tokens, target):
        size = sum(tokens[index] for index in unit)
        # A unit belongs to the share that its middle falls into.
        if result[-1] and done + size / 2 > target * len(result):
            result.append([])
        result[-1] += unit
        done += size
    return result


def _units(order: Sequence[int], slots: Sequence[int], tokens: Sequence[int], target: float) -> Iterator[list[int]]:
    """The rows of one slot, or each row alone where they are more than half a share."""
    for _, of_slot in groupby(order, key=lambda index: slots[index]):
        rows = list(of_slot)
        if sum(tokens[index] for index in rows) <= target / 2:
            yield rows
        else:
            yield from ([index] for index in rows)

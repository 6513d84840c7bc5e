"""ConcatBatching: rows of one length that hold several texts each (the TCB paper, section 4).

Each text attends only to itself, through a block mask; its positions were added before. The pure form computes
attention over whole rows and masks most of it. Slots cut the attention into shorter windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backends.engine.layouts.grid import Grid
from backends.engine.layouts.micro_batches import Sharing, shares

_ROW_TOKENS = 400
"""The length of a row in the paper's experiments; a longer text makes the rows of its batch longer."""


@dataclass(frozen=True)
class Concatenated:
    """Texts laid side by side in rows.

    Args:
        num_slots: Number of slots of equal size in a row; a slot is never shorter than the longest text. None for as
            many as fit.
    """

    sharing: Sharing
    num_slots: int | None = 1

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        longest = max(lengths)
        most = max(1, _ROW_TOKENS // longest)
        slots_per_row = most if self.num_slots is None else min(self.num_slots, most)
        size = longest if self.num_slots is None else max(longest, _ROW_TOKENS // slots_per_row)
        bins = _filled(lengths, size)
        of_whole_rows = replace(self.sharing, least_tokens=max(self.sharing.least_tokens, size * slots_per_row))
        indices = range(len(bins))
        by_batch = shares(indices, indices, [size] * len(bins), of_whole_rows)
        return [_grid([bins[index] for index in batch], lengths, size, slots_per_row) for batch in by_batch]


def _filled(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Put texts into bins of `size` tokens: the longest first, each into the first bin that has room (first fit)."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        target = next((number for number, free in enumerate(room) if free >= lengths[index]), len(bins))
        if target == len(bins):
            bins.append([])
            room.append(size)
        bins[target].append(index)
        room[target] -= lengths[index]
    return bins


def _grid(bins: Sequence[Sequence[int]], lengths: Sequence[int], size: int, slots_per_row: int) -> Grid:
    """Lay bins end to end; the last row is filled up with empty slots."""
    order, starts = [], []
    for number, texts in enumerate(bins):
        start = number * size
        for index in texts:
            order.append(index)
            starts.append(start)
            start += lengths[index]
    num_bins = -(-len(bins) // slots_per_row) * slots_per_row
    blocks = [(number * size, (number + 1) * size) for number in range(num_bins)]
    return Grid(list(order), starts, [lengths[index] for index in order], num_bins * size, blocks)

"""Rows padded to a common length: isolated from each other where that length is a multiple of the attention window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.engine.layouts.grid import Grid
from backends.engine.layouts.micro_batches import Sharing, shares
from backends.engine.layouts.tiles import WINDOW_STEP


@dataclass(frozen=True)
class Isolated:
    """The layout of retried rows: no row's attention window reaches into another, so NaN stays in its row."""

    sharing: Sharing

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        padded_length = -(-max(lengths) // WINDOW_STEP) * WINDOW_STEP
        return padded_grids(range(len(lengths)), slots, lengths, padded_length, self.sharing)


def padded_grids(
    rows: Sequence[int], slots: Sequence[int], lengths: Sequence[int], padded_length: int, sharing: Sharing
) -> list[Grid]:
    """Lay out some of the rows, each padded to `padded_length` tokens."""
    order = sorted(rows, key=lambda index: (slots[index], lengths[index]))
    padded = [padded_length] * len(lengths)
    return [_grid(share, lengths, padded_length) for share in shares(order, slots, padded, sharing)]


def _grid(order: Sequence[int], lengths: Sequence[int], padded_length: int) -> Grid:
    starts = [position * padded_length for position in range(len(order))]
    blocks = [(start, start + padded_length) for start in starts]
    return Grid(list(order), starts, [lengths[index] for index in order], padded_length * len(order), blocks)

"""Rows end to end without padding; rows of one hPLM are side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from backends.engine.layouts.grid import Grid
from backends.engine.layouts.micro_batches import Sharing, shares
from backends.engine.layouts.tiles import Block

_SHARED_WINDOW = 96
"""Windows of 64 to 128 tokens cost the least per token on a CPU."""


@dataclass(frozen=True)
class Ragged:
    """Linear layers over exactly the rows' tokens; short rows share attention windows."""

    sharing: Sharing

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        order = sorted(range(len(lengths)), key=lambda index: (slots[index], lengths[index]))
        return [_grid(share, lengths) for share in shares(order, slots, lengths, self.sharing)]


def narrowed(grid: Grid, kept: Sequence[int], lengths: Sequence[int]) -> Grid:
    """Leave out rows of a packed grid, and tokens of others.

    Args:
        grid: Without padding.
        kept: Positions of the rows that stay, ascending.
        lengths: How many tokens each of these keeps.
    """
    order = [grid.order[position] for position in kept]
    return _grid(order, dict(zip(order, lengths, strict=True)))


def _grid(order: Sequence[int], lengths: Sequence[int] | Mapping[int, int]) -> Grid:
    sizes = [lengths[index] for index in order]
    ends = list(accumulate(sizes))
    starts = [end - size for end, size in zip(ends, sizes, strict=True)]
    return Grid(list(order), starts, sizes, ends[-1], _blocks(starts, ends))


def _blocks(starts: Sequence[int], ends: Sequence[int]) -> list[Block]:
    """Join neighbouring rows, as many as fit into a window."""
    blocks: list[Block] = []
    for start, end in zip(starts, ends, strict=True):
        if blocks and end - blocks[-1][0] <= _SHARED_WINDOW:
            blocks[-1] = (blocks[-1][0], end)
        else:
            blocks.append((start, end))
    return blocks

"""Grids: the positions of a micro-batch's rows among its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from backends.engine.layouts.tiles import Block, Owners, Tile, tiles_of


@dataclass(frozen=True)
class Grid:
    """Rows in a flat array of tokens, with padding between them.

    Args:
        order: `order[i]` is the index of the row that is the i-th in the array.
        starts: First token of each row in the array, ascending.
        lengths: Number of tokens of each row in the array.
        num_tokens: Number of tokens with padding.
        blocks: Where windows of attention may lie; each block holds whole rows.
    """

    order: list[int]
    starts: list[int]
    lengths: list[int]
    num_tokens: int
    blocks: list[Block]

    def tiles(self) -> list[Tile]:
        """Cut the blocks into windows of attention, where it is computed by windows."""
        return tiles_of(self.blocks, _owners(self.starts, self.lengths, self.num_tokens))

    @property
    def is_packed(self) -> bool:
        """Whether there is no padding."""
        return sum(self.lengths) == self.num_tokens


class Layout(Protocol):
    """One way to lay out a batch, as one or more micro-batches."""

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        """Lay out rows, given by slots and lengths, as micro-batches that together hold each row once."""
        ...


def _owners(starts: Sequence[int], lengths: Sequence[int], num_tokens: int) -> Owners:
    """Return the position of each token's row; -1 for padding."""
    owners = np.full(num_tokens, -1, dtype=np.int32)
    for position, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        owners[start : start + length] = position
    return owners

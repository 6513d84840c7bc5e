"""Where the rows of one micro-batch lie among its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from backends.engine.layouts.tiles import Block, Owners, Tile, tiles_of


@dataclass(frozen=True)
class Grid:
    """Rows at their places in a flat array of tokens; whatever lies between them is padding.

    Args:
        order: `order[i]` says which of the rows handed in lies at place i.
        starts: The first token of each place, ascending.
        lengths: The tokens of each place, without padding.
        num_tokens: With padding.
        tiles: Who attends to whom.
    """

    order: list[int]
    starts: list[int]
    lengths: list[int]
    num_tokens: int
    tiles: list[Tile]

    @classmethod
    def of(
        cls, order: Sequence[int], starts: Sequence[int], lengths: Sequence[int], num_tokens: int, blocks: list[Block]
    ) -> Grid:
        """A grid whose rows attend within `blocks`, each of which holds whole rows."""
        owners = _owners(starts, lengths, num_tokens)
        return cls(list(order), list(starts), list(lengths), num_tokens, tiles_of(blocks, owners))

    @property
    def is_packed(self) -> bool:
        """Whether there is no padding."""
        return sum(self.lengths) == self.num_tokens


class Layout(Protocol):
    """One way to lay out a batch, as one or more micro-batches."""

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        """Rows by their slots and lengths → micro-batches that together hold each of them once."""
        ...


def _owners(starts: Sequence[int], lengths: Sequence[int], num_tokens: int) -> Owners:
    """The place that each token belongs to; padding belongs to none, -1."""
    owners = np.full(num_tokens, -1, dtype=np.int64)
    for place, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        owners[start : start + length] = place
    return owners

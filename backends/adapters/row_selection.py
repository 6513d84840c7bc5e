"""The rows of a pool that the segments of a batch read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MOST_SPANNED = 3
"""A group without tokens costs a third of a row's copy."""


class RowSelection:
    """Some rows of a pool: a view where they are consecutive, a gathered copy otherwise."""

    def __init__(self, rows: Sequence[int], device: torch.device) -> None:
        self._neighbours = slice(rows[0], rows[0] + len(rows))
        self._index: Tensor | None = None
        if list(rows) != list(range(rows[0], rows[0] + len(rows))):
            self._index = torch.tensor(rows, device=device)

    def of(self, tensor: Tensor, layer: int) -> Tensor:
        """Return the rows of one layer: `[U, rows, …]` → `[selected, …]`."""
        if self._index is None:
            return tensor[layer, self._neighbours]
        return tensor[layer].index_select(0, self._index)


def multiplied_rows(rows: Sequence[int]) -> Sequence[int]:
    """Return all rows from the first to the last where most are used, and these alone otherwise."""
    span = range(rows[0], rows[-1] + 1)
    return span if len(span) <= _MOST_SPANNED * len(rows) else rows

"""Batches on the device: rows laid out as micro-batches, each with the adapters of its segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from backends.adapters.product import BatchAdapters
from backends.adapters.segments import Segment
from backends.conversion import concatenated, converted
from backends.engine.layouts import Grid, Layout, narrowed
from backends.engine.pruning import Bools


@dataclass(frozen=True)
class MicroBatch:
    """Rows that pass the layers at once.

    Args:
        grid: Positions of the rows.
        adapters: Adapters of its segments. They hold their tensors, which stay unchanged while pools grow.
        hidden: `[T, H]`.
    """

    grid: Grid
    adapters: BatchAdapters
    hidden: Tensor

    @property
    def may_narrow(self) -> bool:
        """Whether rows can be left out; between rows with padding they are computed on."""
        return self.grid.is_packed

    def narrowed(
        self, states: Tensor, kept: Sequence[int], slots: Sequence[int], words: Mapping[int, Bools]
    ) -> MicroBatch:
        """Go on with some of the rows, at the states that they have by now.

        Args:
            states: Of all tokens, `[T, H]`.
            kept: Positions of the rows that stay, ascending.
            slots: Slots of these.
            words: Which of its tokens a row keeps, by its position; all of a row that is not among them.
        """
        starts, lengths = self.grid.starts, [*self.grid.lengths]
        stays = np.zeros(len(states), dtype=np.bool_)
        for row in kept:
            own = words.get(row)
            stays[starts[row] : starts[row] + lengths[row]] = True if own is None else own
            lengths[row] = lengths[row] if own is None else int(own.sum())
        grid = narrowed(self.grid, kept, [lengths[row] for row in kept])
        hidden = states.index_select(0, torch.from_numpy(np.flatnonzero(stays)).to(states.device))
        return MicroBatch(grid, self.adapters.narrowed(_segments(grid, slots)), hidden)


@dataclass(frozen=True)
class PackedRows:
    """Micro-batches that together hold every row once."""

    micro_batches: list[MicroBatch]

    @property
    def num_tokens(self) -> int:
        """Number of tokens with padding."""
        return sum(batch.grid.num_tokens for batch in self.micro_batches)


def pack_rows(
    rows: Sequence[Tensor],
    slots: Sequence[int],
    layout: Layout,
    adapters_of: Callable[[Sequence[Segment]], BatchAdapters],
    dtype: torch.dtype,
    device: torch.device,
) -> PackedRows:
    """Pack rows `[L_i, H]` with their slots into one batch on the device.

    `adapters_of` gets segments that cover all tokens of a micro-batch; padding belongs to the row in front of it.
    """
    grids = layout.arrange(slots, [len(row) for row in rows])
    return PackedRows(
        [
            MicroBatch(
                grid,
                adapters_of(_segments(grid, [slots[index] for index in grid.order])),
                _hidden(grid, [rows[index] for index in grid.order], dtype, device),
            )
            for grid in grids
        ]
    )


def _hidden(grid: Grid, rows: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Gather the rows at their positions, with zeros between them, copied to the device and converted."""
    if grid.is_packed:
        return concatenated(rows, dtype, device)
    laid = torch.zeros(grid.num_tokens, rows[0].shape[1], dtype=rows[0].dtype, device=rows[0].device)
    for start, row in zip(grid.starts, rows, strict=True):
        laid[start : start + len(row)] = row
    return converted(laid, dtype, device)


def _segments(grid: Grid, slots: Sequence[int]) -> list[Segment]:
    """Return one segment for each run of neighbouring rows with the same slot."""
    bounds = [0, *grid.starts[1:], grid.num_tokens]
    segments: list[Segment] = []
    for slot, (start, end) in zip(slots, pairwise(bounds), strict=True):
        if segments and segments[-1].slot == slot:
            segments[-1] = Segment(slot, segments[-1].start, end)
        else:
            segments.append(Segment(slot, start, end))
    return segments

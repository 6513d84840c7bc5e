"""Attention cut into tiles: windows of a few dozen tokens, in each of which everybody attends to their own row.

Attention kernels run fastest over windows whose length is a multiple of 16, and are slow over many tiny ones. So short
neighbours share a window, and a window may reach into tokens that are not its own: those are masked, and what is
computed for them is dropped. Nothing is copied or padded for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW_STEP = 16

Owners = NDArray[np.int64]
Block = tuple[int, int]
"""Tokens from, to: whole rows, outside of which none of them attends."""


@dataclass(frozen=True)
class Tile:
    """`count` windows of one size, seen in one call.

    Window i begins at token `start + i * owned` and reaches over `window` tokens; the `owned` tokens after its first
    `skip` are those that it is computed for.

    Shape:
        mask: `[count or 1, window or 1, window]` (window, query, key), true where one attends; none: everywhere.
    """

    start: int
    count: int
    owned: int
    window: int
    skip: int
    mask: NDArray[np.bool_] | None


def tiles_of(blocks: Sequence[Block], owners: Owners) -> list[Tile]:
    """Blocks in ascending order → tiles. A token sees those of its own owner; padding, whose owner is -1, its like."""
    return [tile for run in _equal_runs(blocks) for tile in _tiles_of_run(run, owners)]


def _tiles_of_run(run: Sequence[Block], owners: Owners) -> Iterator[Tile]:
    """Adjacent blocks of one size: those whose windows end within the tokens go together."""
    (first, end), total = run[0], len(owners)
    size = end - first
    window = min(-(-size // WINDOW_STEP) * WINDOW_STEP, total)
    together = sum(start + window <= total for start, _ in run)
    if together:
        yield _tile(owners, first, together, size, window, 0)
    for start, _ in run[together:]:
        yield _tile(owners, total - window, 1, size, window, start - (total - window))


def _tile(owners: Owners, start: int, count: int, owned: int, window: int, skip: int) -> Tile:
    seen = owners[start + np.arange(count)[:, None] * owned + np.arange(window)]
    own = seen[:, skip : skip + owned]
    first = own[:, :1]
    if bool(((own == first) | (own < 0)).all()):
        mask = (seen == first)[:, None, :]
    else:
        mask = seen[:, :, None] == seen[:, None, :]
    if mask.all():
        return Tile(start, count, owned, window, skip, None)
    if count > 1 and bool((mask == mask[:1]).all()):
        mask = mask[:1]
    return Tile(start, count, owned, window, skip, mask)


def _equal_runs(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    run: list[Block] = []
    for start, end in blocks:
        if run and (run[-1][1] != start or run[-1][1] - run[-1][0] != end - start):
            yield run
            run = []
        run.append((start, end))
    if run:
        yield run

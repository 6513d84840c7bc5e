"""Tiles: attention cut into windows of a few dozen tokens, in which each token attends to its own row.

Attention kernels are fastest over windows whose length is a multiple of 16, and slow over many tiny windows. So short
neighbours share a window, and a window may reach beyond the tokens that it computes. Those tokens are masked as keys,
and their results are dropped. Nothing is copied or padded:

    rows    … |  7  |  8  |     9     |     10 …
    window       [   skip   |   owned   | rest ]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW_STEP = 16

Owners = NDArray[np.int32]
Block = tuple[int, int]
"""First token, end: whole rows, which attend only to tokens of the block."""


@dataclass(frozen=True)
class Tile:
    """`count` windows of one size, computed in one call.

    Window i begins at token `start + i * owned` and has `window` tokens. It computes the `owned` tokens after its first
    `skip` tokens.

    Shape:
        mask: `[count or 1, window or 1, window]` (window, query, key), true where a query attends; None for everywhere.
    """

    start: int
    count: int
    owned: int
    window: int
    skip: int
    mask: NDArray[np.bool_] | None


def tiles_of(blocks: Sequence[Block], owners: Owners) -> list[Tile]:
    """Cut blocks, in ascending order, into tiles. A token attends to tokens of the same owner; padding has owner -1."""
    return [tile for run in _equal_runs(blocks) for tile in _tiles_of_run(run, owners)]


def _tiles_of_run(run: Sequence[Block], owners: Owners) -> Iterator[Tile]:
    """Yield the tiles of adjacent blocks of one size; blocks whose windows end within the tokens share one."""
    (first, end), total = run[0], len(owners)
    size = end - first
    window = min(-(-size // WINDOW_STEP) * WINDOW_STEP, total)
    num_windows_inside = sum(start + window <= total for start, _ in run)
    if num_windows_inside:
        yield _tile(owners, first, num_windows_inside, size, window, 0)
    for start, _ in run[num_windows_inside:]:
        yield _tile(owners, total - window, 1, size, window, start - (total - window))


def _tile(owners: Owners, start: int, count: int, owned: int, window: int, skip: int) -> Tile:
    keys = owners[start + np.arange(count)[:, None] * owned + np.arange(window)]
    queries = keys[:, skip : skip + owned]
    first = queries[:, :1]
    if bool(((queries == first) | (queries < 0)).all()):  # one row a window: one line of mask for all its queries
        mask = (keys == first)[:, None, :]
    else:
        mask = keys[:, :, None] == keys[:, None, :]
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

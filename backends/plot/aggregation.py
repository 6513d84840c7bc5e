"""Aggregation: sums the vectors of fragments to one hidden state per token."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from backends.plot.arrays import Float16Array, Ids
from backends.plot.keys import FragmentShape

Gather = Callable[[int, int, Float16Array], None]

# Few enough that the vectors stay in the caches between the steps, enough that a step outweighs its call.
_CHUNK_TOKENS = 512


def aggregate(gather: Gather, row_offsets: Ids, hidden_size: int, shape: FragmentShape) -> torch.Tensor:
    """Sum every token's own vector and its neighbours' vectors for it, in fp32.

    Semantics: u[i] = Σ_j g[i + before - j, j], neighbours within the row only;
    `gather(start, end, out)` writes g of the tokens start..end to out [end - start, n * hidden].
    Shape: row_offsets [R + 1] -> [T, hidden] float32
    """
    states = torch.empty(int(row_offsets[-1]), hidden_size)
    groups = list(_row_groups(row_offsets))
    longest = max((int(offsets[-1] - offsets[0]) for offsets in groups), default=0)
    window = _Window(longest, hidden_size, shape)
    for offsets in groups:
        start, end = int(offsets[0]), int(offsets[-1])
        gather(start, end, window.vectors(end - start))
        window.sum_into(states[start:end], offsets - start)
    return states


def _row_groups(row_offsets: Ids) -> Iterator[Ids]:
    """Offsets of consecutive whole rows, cut where a chunk's worth of tokens has come together."""
    if row_offsets[-1] <= _CHUNK_TOKENS:
        yield row_offsets
        return
    targets = np.arange(0, int(row_offsets[-1]), _CHUNK_TOKENS)
    cuts = np.unique(np.append(np.searchsorted(row_offsets, targets), row_offsets.size - 1))
    for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        yield row_offsets[first : last + 1]


class _Window:
    """Room for one group's vectors, and for fragments before the first and behind the last token that say nothing."""

    def __init__(self, tokens: int, hidden_size: int, shape: FragmentShape) -> None:
        width = shape.n * hidden_size
        self._halves = torch.empty(tokens, width, dtype=torch.float16)
        self._floats = torch.empty(tokens + shape.n - 1, width)
        # A token's n terms lie n - 1 vectors apart: from the last slot of its leftmost fragment to the first of its
        # rightmost; for tri-grams right of i - 1, centre of i, left of i + 1.
        apart = (shape.n - 1) * hidden_size
        self._terms = self._floats.as_strided((tokens, shape.n, hidden_size), (width, apart, 1), apart)
        self._hidden_size = hidden_size
        self._shape = shape

    def vectors(self, tokens: int) -> Float16Array:
        return self._halves[:tokens].numpy()

    def sum_into(self, states: torch.Tensor, row_offsets: Ids) -> None:
        tokens, before = states.shape[0], self._shape.after
        self._floats[before : before + tokens].copy_(self._halves[:tokens])
        self._clear_borders(row_offsets + before)
        torch.add(self._terms[:tokens, 0], self._terms[:tokens, 1], out=states)
        for slot in range(2, self._shape.n):
            states += self._terms[:tokens, slot]

    def _clear_borders(self, borders: Ids) -> None:
        """Zero the vectors that fragments near a border hold for tokens on its other side.

        The outermost borders clear the vectors read for fragments that do not exist.
        """
        vectors = self._floats.numpy()
        before, after = self._shape.before, self._shape.after
        for distance in range(1, after + 1):
            vectors[borders - distance, (before + distance) * self._hidden_size :] = 0
        for distance in range(before):
            vectors[borders + distance, : (before - distance) * self._hidden_size] = 0

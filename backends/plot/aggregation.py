"""From the three vectors of every fragment to one hidden state per token."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from backends.plot.arrays import Halves, Ids
from backends.plot.header import Store

Gather = Callable[[int, int, Halves], None]

# Few enough that the vectors stay in the caches between the steps, enough that a step outweighs its call.
_CHUNK_TOKENS = 1024
_SLOTS = Store.TRI.vectors


def aggregate(gather: Gather, row_offsets: Ids, hidden_size: int) -> torch.Tensor:
    """Sum every token's centre vector and its neighbours' vectors for it, in fp32.

    Semantics: u[i] = g[i, centre] + g[i + 1, left] + g[i - 1, right], neighbours within the row only;
    `gather(start, end, out)` writes g of the tokens start..end to out [end - start, 3 * hidden].
    Shape: row_offsets [R + 1] -> [T, hidden] float32
    """
    states = torch.empty(int(row_offsets[-1]), hidden_size)
    groups = list(_row_groups(row_offsets))
    longest = max((int(offsets[-1] - offsets[0]) for offsets in groups), default=0)
    window = _Window(longest, hidden_size)
    for offsets in groups:
        start, end = int(offsets[0]), int(offsets[-1])
        gather(start, end, window.vectors(end - start))
        window.sum_into(states[start:end], offsets - start)
    return states


def _row_groups(row_offsets: Ids) -> Iterator[Ids]:
    """Offsets of consecutive whole rows, cut where a chunk's worth of tokens has come together."""
    targets = np.arange(0, int(row_offsets[-1]), _CHUNK_TOKENS)
    cuts = np.unique(np.append(np.searchsorted(row_offsets, targets), row_offsets.size - 1))
    for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        yield row_offsets[first : last + 1]


class _Window:
    """Room for one group's vectors with a zero fragment before the first and after the last token."""

    def __init__(self, tokens: int, hidden_size: int) -> None:
        width = _SLOTS * hidden_size
        self._halves = torch.empty(tokens, width, dtype=torch.float16)
        self._floats = torch.zeros(tokens + 2, width)
        # Token i's three terms lie two vectors apart: right of i - 1, centre of i, left of i + 1.
        strides = (width, 2 * hidden_size, 1)
        self._terms = self._floats.as_strided((tokens, _SLOTS, hidden_size), strides, 2 * hidden_size)
        self._hidden_size = hidden_size

    def vectors(self, tokens: int) -> Halves:
        return self._halves[:tokens].numpy()

    def sum_into(self, states: torch.Tensor, row_offsets: Ids) -> None:
        tokens = states.shape[0]
        self._floats[1 : tokens + 1].copy_(self._halves[:tokens])
        # The right vector of the token before a border, and the left vector of the token after it, belong to no one.
        vectors = self._floats.numpy()
        vectors[row_offsets, 2 * self._hidden_size :] = 0
        vectors[row_offsets + 1, : self._hidden_size] = 0
        torch.add(self._terms[:tokens, 0], self._terms[:tokens, 1], out=states)
        states += self._terms[:tokens, 2]

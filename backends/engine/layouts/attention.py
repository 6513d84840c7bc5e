"""Attention inside each row of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from backends.engine.layouts.grid import Grid
from backends.engine.layouts.tiles import Tile
from backends.kernels.attention import attend_in_rows
from backends.kernels.compiling import flat_memory_of, memory_of
from backends.root.encoder import Attend


def attention(grid: Grid, num_heads: int, head_size: int, dtype: torch.dtype, device: torch.device) -> Attend:
    """Choose the attention of a grid: row by row on a CPU; on a GPU all at once without padding, else tile by tile."""
    if device.type == "cpu":
        return RowAttention(num_heads, grid)
    if dtype == torch.bfloat16 and grid.is_packed and reads_heads_of(head_size):
        return PackedAttention(num_heads, grid.lengths, device)
    return TiledAttention(num_heads, grid.tiles(), dtype, device)


def reads_heads_of(size: int) -> bool:
    """Whether a GPU's kernel for rows of any lengths reads heads of a size."""
    return size % 8 == 0 and size <= 256


class RowAttention:
    """Attention by a compiled loop over rows of any lengths, on a CPU.

    Shape:
        query, key, value: `[T, H]`, possibly parts of one tensor.
    """

    def __init__(self, num_heads: int, grid: Grid) -> None:
        self._num_heads = num_heads
        self._rows = np.array(grid.starts), np.array(grid.lengths)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # Tokens of no row are nobody's, and are zeros.
        context = torch.zeros(query.shape, dtype=query.dtype)
        states = [flat_memory_of(states) for states in (query, key, value)]
        attend_in_rows(*states, query.stride(0), *self._rows, self._num_heads, memory_of(context))
        return context


class PackedAttention:
    """Attention by the GPU's kernel for rows of any lengths, end to end.

    Shape:
        query, key, value: `[T, H]`, possibly parts of one tensor.
    """

    def __init__(self, num_heads: int, lengths: Sequence[int], device: torch.device) -> None:
        # PyTorch's compiler comes along, which takes seconds to load; a server without GPU needs neither.
        from torch.nn.attention.varlen import varlen_attn

        self._attend = varlen_attn
        self._num_heads = num_heads
        self._longest = max(lengths)
        self._bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tokens, hidden = query.shape
        split = (tokens, self._num_heads, hidden // self._num_heads)
        heads = [states.view(split) for states in (query, key, value)]
        bounds, longest = self._bounds, self._longest
        context = cast(Tensor, self._attend(heads[0], heads[1], heads[2], bounds, bounds, longest, longest))
        return context.view(tokens, hidden)


class TiledAttention:
    """Attention by windows: every token attends to the tokens of its own row.

    Shape:
        query, key, value: `[T, H]`, possibly parts of one tensor.
    """

    def __init__(self, num_heads: int, tiles: Sequence[Tile], dtype: torch.dtype, device: torch.device) -> None:
        self._num_heads = num_heads
        self._tiles = [(tile, _bias(tile, dtype, device)) for tile in tiles]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tokens, hidden = query.shape
        if (
            len(self._tiles) == 1
            and (only := self._tiles[0][0]).count * only.window == tokens == only.count * only.owned
        ):
            return self._attend(*self._tiles[0], query, key, value).reshape(tokens, hidden)
        # Padding that no tile computes must be finite all the same: a masked value of NaN spoils its window.
        context = torch.zeros(tokens, hidden, dtype=query.dtype, device=query.device)
        for tile, bias in self._tiles:
            attended = self._attend(tile, bias, query, key, value)
            start, end = tile.start + tile.skip, tile.start + tile.skip + tile.count * tile.owned
            owned = attended[:, tile.skip : tile.skip + tile.owned]
            context[start:end].view(tile.count, tile.owned, hidden).copy_(owned)
        return context

    def _attend(self, tile: Tile, bias: Tensor | None, *states: Tensor) -> Tensor:
        """`[count, window, H]`."""
        query, key, value = (self._windows(tile, one) for one in states)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return attended.transpose(1, 2).reshape(tile.count, tile.window, -1)

    def _windows(self, tile: Tile, states: Tensor) -> Tensor:
        """Return the windows of a tile, which may overlap, as a view: `[count, heads, window, H / heads]`."""
        head_size, row = states.shape[1] // self._num_heads, states.stride(0)
        size = (tile.count, self._num_heads, tile.window, head_size)
        stride = (tile.owned * row, head_size, row, 1)
        return states.as_strided(size, stride, states.storage_offset() + tile.start * row)


def _bias(tile: Tile, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    if tile.mask is None:
        return None
    allowed = torch.from_numpy(tile.mask).to(device)[:, None]
    return torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill_(~allowed, float("-inf"))

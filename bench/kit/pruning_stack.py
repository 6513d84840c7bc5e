"""The upper layers with word pruning, as Tabi has it: a text that goes on at its exit loses the words of least score.

The engine has none; this is what `bench.pruning` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.adapters.head import Head
from backends.adapters.pooling import PAIR_POOLING
from backends.engine.exits import Exit, confidences
from backends.engine.heads import HeadRow, logits
from backends.engine.layouts.attention import TiledAttention
from backends.engine.layouts.grid import Grid
from backends.engine.layouts.tiles import Tile
from backends.engine.packing import MicroBatch, PackedRows
from backends.engine.stack import ReadyHplm, UpperStack
from backends.root.encoder import Attend

Score = Literal["attention", "head"]
NO_WORD = -1
"""The word of special tokens, which stay."""

_Bools = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pruning:
    """Which words stay: those with a token whose score is above `alpha` times the mean of the text's words.

    Attributes:
        score: The attention that a token receives in the layer before the exit; or how far it moves the early answer
            between its two likeliest labels.
    """

    score: Score
    alpha: float


@dataclass(frozen=True)
class PrunableRow:
    """A row on its way.

    Attributes:
        middle: First token of a pair's second segment.
        words: Index of each token's word, or `NO_WORD`; `[L]`.
    """

    hplm: ReadyHplm
    exit: Exit
    middle: int | None
    words: Int64


@dataclass(frozen=True)
class PrunedRow:
    """The logits of a row, and how many of its tokens passed the layers after the exit; None if it left there."""

    logits: Tensor
    kept_tokens: int | None


class PruningStack(UpperStack):
    """`run_pruned` is `run` with pruning, for rows that each have an exit after the same layer."""

    def run_pruned(self, packed: PackedRows, rows: Sequence[PrunableRow], pruning: Pruning) -> list[PrunedRow]:
        def run(batch: MicroBatch) -> dict[int, PrunedRow]:
            return self._pruned(batch, [rows[index] for index in batch.grid.order], pruning)

        found: dict[int, PrunedRow] = {}
        for of_share in self._compute_pool.run(run, packed.micro_batches):
            found |= of_share
        return [found[index] for index in range(len(rows))]

    @torch.inference_mode()
    def _pruned(self, batch: MicroBatch, rows: Sequence[PrunableRow], pruning: Pruning) -> dict[int, PrunedRow]:
        grid, after = batch.grid, rows[0].exit.after
        attend = self.attention(batch)
        if pruning.score == "attention":
            attend = _Received(self._geometry.num_heads, grid, self._dtype, self._device, after - 1, attend)
        states = self._layers(batch.hidden, attend, batch.adapters, range(after))
        early = logits(states, _head_rows(grid, [row.exit.head for row in rows], rows, [row.middle for row in rows]))
        sure = confidences(early, [row.exit for row in rows])
        stays = [not row.exit.lets_go(confidence) for row, confidence in zip(rows, sure, strict=True)]
        found = {grid.order[at]: PrunedRow(early[at], None) for at in range(len(rows)) if not stays[at]}
        going_on = [at for at in range(len(rows)) if stays[at]]
        if not going_on:
            return found
        tokens = _Tokens(grid, rows)
        scores = attend.received.numpy() if isinstance(attend, _Received) else tokens.pulls(states, early)
        kept = tokens.kept(scores, pruning.alpha)
        lengths, middles = tokens.lengths(kept), tokens.middles(kept)
        narrower = _without(batch, states, kept, lengths).narrowed(
            states[torch.from_numpy(kept)], going_on, [rows[at].hplm.lease.slot for at in going_on]
        )
        rest = range(after, self._geometry.num_upper_layers)
        states = self._layers(narrower.hidden, self.attention(narrower), narrower.adapters, rest)
        stayed = [rows[at] for at in going_on]
        heads = _head_rows(narrower.grid, [row.hplm.head for row in stayed], stayed, [middles[at] for at in going_on])
        for at, output in zip(going_on, logits(states, heads), strict=True):
            found[grid.order[at]] = PrunedRow(output, int(lengths[at]))
        return found


class _Tokens:
    """The tokens of a batch: which row, segment and word each belongs to."""

    def __init__(self, grid: Grid, rows: Sequence[PrunableRow]) -> None:
        self._rows = rows
        starts, lengths = np.array(grid.starts), np.array(grid.lengths)
        self._row = np.repeat(np.arange(len(rows)), lengths)
        ends_first = np.array(
            [length if row.middle is None else row.middle for row, length in zip(rows, lengths, strict=True)]
        )
        self._is_second = np.arange(grid.num_tokens) - starts[self._row] >= ends_first[self._row]
        self._segment = 2 * self._row + self._is_second
        words = np.concatenate([row.words for row in rows])
        self._is_word = words != NO_WORD
        self._word = starts[self._row] + words
        """Of the batch; of special tokens without meaning."""

    def kept(self, scores: _Floats, alpha: float) -> _Bools:
        """Choose whole words, and at least one of each segment that has any."""
        totals = np.bincount(self._row, scores * self._is_word, len(self._rows))
        least = alpha * totals / np.maximum(1, np.bincount(self._row, self._is_word, len(self._rows)))
        kept_words = np.zeros(len(scores), np.bool_)
        kept_words[self._word[self._is_word & (scores > least[self._row])]] = True
        num_segments = 2 * len(self._rows)
        num_words = np.bincount(self._segment, self._is_word, num_segments)
        num_kept = np.bincount(self._segment, self._is_word & kept_words[self._word], num_segments)
        for segment in np.flatnonzero((num_words > 0) & (num_kept == 0)):
            candidates = np.flatnonzero(self._is_word & (self._segment == segment))
            kept_words[self._word[candidates[scores[candidates].argmax()]]] = True
        kept: _Bools = ~self._is_word | kept_words[self._word]
        return kept

    def pulls(self, states: Tensor, early: Sequence[Tensor]) -> _Floats:
        """Return how far each token's state, against the mean of its segment, moves the early answer."""
        weights = torch.stack([each for row, one in zip(self._rows, early, strict=True) for each in _pull_of(row, one)])
        pulls = (states.float() * weights[torch.from_numpy(self._segment)]).sum(dim=-1).numpy()
        num_segments = 2 * len(self._rows)
        means = np.bincount(self._segment, pulls, num_segments) / np.maximum(
            1, np.bincount(self._segment, minlength=num_segments)
        )
        found: _Floats = np.abs(pulls - means[self._segment])
        return found

    def lengths(self, kept: _Bools) -> Int64:
        return np.bincount(self._row, kept, len(self._rows)).astype(np.int64)

    def middles(self, kept: _Bools) -> list[int | None]:
        firsts = np.bincount(self._row, kept & ~self._is_second, len(self._rows)).astype(int)
        return [None if row.middle is None else int(first) for row, first in zip(self._rows, firsts, strict=True)]


def _pull_of(row: PrunableRow, early: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights between the two likeliest labels, for tokens of the first and of the second segment: `[H]`.

    Of a pair's features those count that its means enter as they are.
    """
    best, second = early.topk(2).indices.tolist()
    difference = row.exit.head.weight[best] - row.exit.head.weight[second]
    if row.hplm.pooling != PAIR_POOLING:
        return difference, difference
    whole, _, _, apart = difference.chunk(4)
    middle, length = row.middle or len(row.words), len(row.words)
    return whole / length + apart / middle, whole / length - apart / max(1, length - middle)


class _Received(TiledAttention):
    """Attention that notes how much of it each token receives in one layer: `received`, `[T]`.

    In the others it is as without pruning, so that only the noting costs time.
    """

    def __init__(
        self, num_heads: int, grid: Grid, dtype: torch.dtype, device: torch.device, layer: int, others: Attend
    ) -> None:
        super().__init__(num_heads, grid.tiles(), dtype, device)
        self._layer, self._others = layer, others
        self.received = torch.zeros(grid.num_tokens)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if layer != self._layer:
            return self._others(layer, query, key, value)
        return super().__call__(layer, query, key, value)

    def _attend(self, tile: Tile, bias: Tensor | None, *states: Tensor) -> Tensor:
        query, key, value = (self._windows(tile, one) for one in states)
        scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
        weights = (scores if bias is None else scores + bias).softmax(dim=-1)
        received = weights[:, :, tile.skip : tile.skip + tile.owned].sum(dim=(1, 2), dtype=torch.float32)
        keys = tile.start + torch.arange(tile.count)[:, None] * tile.owned + torch.arange(tile.window)
        self.received.index_add_(0, keys.flatten(), received.flatten())
        attended: Tensor = weights @ value
        return attended.transpose(1, 2).reshape(tile.count, tile.window, -1)


def _without(batch: MicroBatch, states: Tensor, kept: _Bools, lengths: Int64) -> MicroBatch:
    """Return the batch with the kept tokens only; its rows keep their order, and its attention is not laid out."""
    ends = np.cumsum(lengths)
    grid = replace(
        batch.grid, starts=(ends - lengths).tolist(), lengths=lengths.tolist(), num_tokens=int(ends[-1]), blocks=[]
    )
    return replace(batch, grid=grid)


def _head_rows(
    grid: Grid, heads: Sequence[Head], rows: Sequence[PrunableRow], middles: Sequence[int | None]
) -> list[HeadRow]:
    return [
        HeadRow(start, start + length, head, row.hplm.pooling, middle)
        for start, length, head, row, middle in zip(grid.starts, grid.lengths, heads, rows, middles, strict=True)
    ]

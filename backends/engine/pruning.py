"""Word pruning: a row that goes on at its exit loses the words that receive least attention there, as in Tabi.

A token's score is the attention that it receives from the row's tokens in the layer below the exit, summed over the
heads. No kernel returns that, so queries and keys of that layer are kept until the exit, and it is computed for the
rows that lose words there.

Usage:
    received = ReceivedAttention(layer, num_heads)
    hidden = layers(hidden, received.noting(attend), …)
    kept = kept_tokens([RowAtExit(head_row, received.of(head_row), prunable), …])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.engine.heads import HeadRow
from backends.errors import HplmError
from backends.root.encoder import Attend
from backends.root.word_marks import BEGINS_WORD, OF_NO_WORD, WordMarks

Bools = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float32]
_Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Prunable:
    """The words of a row, and which of them it keeps.

    Attributes:
        alpha: A word stays if a token of it has a score above so many times the mean of the row's words.
        marks: What each token is to the words; `[L]`. Tokens of no word stay, and a word of each segment.
    """

    alpha: float
    marks: WordMarks


class RowAtExit(NamedTuple):
    """A row, and the score of each of its tokens, above 0: `[L]`."""

    row: HeadRow
    scores: Tensor
    prunable: Prunable


class ReceivedAttention:
    """The attention that tokens receive in one layer of a batch without padding."""

    def __init__(self, layer: int, num_heads: int) -> None:
        self._layer, self._num_heads = layer, num_heads
        self._queries_and_keys: tuple[Tensor, Tensor] | None = None

    def noting(self, attend: Attend) -> Attend:
        """Return the same attention, which leaves here what it is computed from."""

        def attend_and_note(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            if layer == self._layer:
                self._queries_and_keys = queries, keys
            return attend(layer, queries, keys, values)

        return attend_and_note

    def of(self, row: HeadRow) -> Tensor:
        """Sum up what each token of a row receives: `[L]`, in fp32.

        Raises:
            HplmError: The layer has not been computed.
        """
        if self._queries_and_keys is None:
            raise HplmError(f"nothing was noted of layer {self._layer}")
        length = row.end - row.start
        queries, keys = (
            states[row.start : row.end].float().view(length, self._num_heads, -1).transpose(0, 1)
            for states in self._queries_and_keys
        )
        weights = queries @ keys.transpose(1, 2) / queries.shape[-1] ** 0.5
        return torch.softmax(weights, dim=-1).sum(dim=(0, 1))


def kept_tokens(rows: Sequence[RowAtExit]) -> list[Bools]:
    """Choose the tokens that rows keep, `[L]` of each."""
    return _Tokens.of(rows).kept(torch.cat([each.scores for each in rows]).cpu().numpy())


class _Tokens(NamedTuple):
    """The tokens of some rows, one row behind the other: the row, segment and word of each, by their numbers.

    Shape: alphas and lengths `[rows]`, the others `[T]`
    """

    alphas: npt.NDArray[np.float64]
    lengths: _Indices
    row: _Indices
    segment: _Indices
    word: _Indices
    is_of_word: Bools

    @classmethod
    def of(cls, rows: Sequence[RowAtExit]) -> _Tokens:
        alphas = np.array([each.prunable.alpha for each in rows])
        lengths = np.array([len(each.prunable.marks) for each in rows])
        row = np.repeat(np.arange(len(rows)), lengths)
        place = np.concatenate([np.arange(length) for length in lengths.tolist()])
        segment = 2 * row + (place >= np.array([_first_length(each.row) for each in rows])[row])
        marks = np.concatenate([each.prunable.marks for each in rows])
        is_of_word = marks != OF_NO_WORD
        follows_word = np.concatenate([[False], is_of_word[:-1] & (segment[1:] == segment[:-1])])
        begins = is_of_word & ((marks == BEGINS_WORD) | ~follows_word)
        return cls(alphas, lengths, row, segment, np.maximum(begins.cumsum() - 1, 0), is_of_word)

    def kept(self, scores: _Floats) -> list[Bools]:
        """Choose the words of each row with a score above its least one, and one word of each segment."""
        num_rows, is_of_word = len(self.lengths), self.is_of_word
        num_segments = 2 * num_rows
        with np.errstate(invalid="ignore"):
            scores = scores * is_of_word
        least = self.alphas * np.bincount(self.row, scores, num_rows) / _counts(self.row[is_of_word], num_rows)
        stays = np.zeros(len(scores), np.bool_)
        stays[self.word[is_of_word & (scores > least[self.row])]] = True
        has_words, has_kept = np.zeros((2, num_segments), np.bool_)
        has_words[self.segment[is_of_word]] = True
        has_kept[self.segment[is_of_word & stays[self.word]]] = True
        for segment in np.flatnonzero(has_words & ~has_kept):
            candidates = np.flatnonzero(is_of_word & (self.segment == segment))
            stays[self.word[candidates[scores[candidates].argmax()]]] = True
        kept: Bools = ~is_of_word | stays[self.word]
        return np.split(kept, np.cumsum(self.lengths)[:-1])


def _counts(indices: _Indices, length: int) -> npt.NDArray[np.intp]:
    """Count each index; those that are missing once, so that one may divide by it."""
    return np.maximum(1, np.bincount(indices, minlength=length))


def _first_length(row: HeadRow) -> int:
    return row.end - row.start if row.middle is None else row.middle

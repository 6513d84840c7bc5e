"""Word pruning: a row that goes on at its exit loses the words that its early answer depends on least.

A token's score says how far its state, against the mean of its segment, moves the early answer between its two
likeliest labels. That is read off the early head, so it takes no more than one product for each token.

Usage:
    kept = kept_tokens(states, [RowAtExit(head_row, early_logits, prunable), …])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.adapters.pooling import PAIR_POOLING
from backends.engine.heads import HeadRow
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
    """A row with its early head, and what that has answered: `[C]`, in fp32 on the CPU."""

    row: HeadRow
    early: Tensor
    prunable: Prunable


KeptTokens = Callable[[Tensor, Sequence[RowAtExit]], list[Bools]]
"""Chooses the tokens that rows keep, from packed states `[T, H]`: `[L]` of each."""


def kept_tokens(states: Tensor, rows: Sequence[RowAtExit]) -> list[Bools]:
    """Choose by how far each token moves the early answer."""
    tokens = _Tokens.of(rows)
    return tokens.kept(tokens.spread(torch.cat([pull for each in rows for pull in _pulls(states, each)]).cpu().numpy()))


def kept_by_scores(scores: Tensor, rows: Sequence[RowAtExit]) -> list[Bools]:
    """Choose by scores of all tokens, above 0, `[T]`."""
    return _Tokens.of(rows).kept(torch.cat([scores[each.row.start : each.row.end] for each in rows]).cpu().numpy())


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

    def spread(self, pulls: _Floats) -> _Floats:
        """Return how far each pull is from the mean of its segment."""
        num_segments = 2 * len(self.lengths)
        with np.errstate(invalid="ignore"):  # of a row of NaN
            means = np.bincount(self.segment, pulls, num_segments) / _counts(self.segment, num_segments)
            apart: _Floats = np.abs(pulls - means[self.segment])
        return apart

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


def _pulls(states: Tensor, at_exit: RowAtExit) -> list[Tensor]:
    """Return how far each token of a row's segments moves its answer: `[L]` in all, in fp32."""
    row, middle = at_exit.row, at_exit.row.start + _first_length(at_exit.row)
    first, second = _directions(at_exit)
    pulls = [torch.mv(states[row.start : middle].float(), first)]
    return pulls if middle == row.end else [*pulls, torch.mv(states[middle : row.end].float(), second)]


def _directions(at_exit: RowAtExit) -> tuple[Tensor, Tensor]:
    """Return the weights between the two likeliest labels, for tokens of the first and of the second segment: `[H]`.

    Of a pair's features those count that its means enter as they are.
    """
    row = at_exit.row
    likeliest = at_exit.early.argsort(descending=True)[:2].tolist()
    between = row.head.weight[likeliest[0]] - row.head.weight[likeliest[-1]]
    if row.pooling != PAIR_POOLING:
        return between, between
    whole, _, _, apart = between.chunk(4)
    length, middle = row.end - row.start, _first_length(row)
    return whole / length + apart / middle, whole / length - apart / max(1, length - middle)

"""Positions of a text's words: in the text, and in its row of tokens."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class RowWords:
    """The words of one row: what the tokenizer cuts texts into before it looks for word pieces, cut at punctuation too.

    Shape:
        first_tokens, starts, ends: `[W]`; a word is `text[start:end]`, and its first piece is that token of the row.
    """

    first_tokens: Int32
    starts: Int32
    ends: Int32

    @classmethod
    def of(cls, encoding: Encoding, text: str) -> RowWords:
        """Needs an encoding with offsets; the library's fast ones have none."""
        offsets, first_tokens, spans = encoding.offsets, [], []
        before: tuple[int, bool] | None = None
        for token, word in enumerate(encoding.word_ids):
            if word is None:  # special tokens belong to no word
                continue
            start, end = _without_blanks(text, *offsets[token])
            if before != (word, _is_punctuation(text[start : start + 1])):
                first_tokens.append(token)
                spans.append([start, end])
            spans[-1][1] = end
            # A token for the blank alone has no letters; it belongs to what follows.
            before = word, _is_punctuation(text[max(start, end - 1) : max(start + 1, end)])
        kept = [(token, *_core(text, *span)) for token, span in zip(first_tokens, spans, strict=True)]
        table = np.array([row for row in kept if text[row[1] : row[2]].strip()], np.int32).reshape(-1, 3)
        return cls(*np.ascontiguousarray(table.T))

    def __len__(self) -> int:
        return len(self.first_tokens)

    def lie_within(self, num_characters: int) -> bool:
        """Whether each word is a piece of a text of that length."""
        is_piece = (self.starts >= 0) & (self.starts < self.ends) & (self.ends <= num_characters)
        return bool(is_piece.all())

    def have_tokens_of(self, num_tokens: int) -> bool:
        """Whether each word begins with a token of a row of that length."""
        return bool(((self.first_tokens >= 0) & (self.first_tokens < num_tokens)).all())


def _without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    """Some tokenizers count the blank before a word as its part."""
    while start < end and text[start].isspace():
        start += 1
    return start, end


def _core(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without the punctuation around it that is part of its pieces, unless there is nothing else."""
    inner = [index for index in range(start, end) if not _is_punctuation(text[index])]
    return (inner[0], inner[-1] + 1) if inner else (start, end)


def _is_punctuation(letter: str) -> bool:
    """Whether BERT cuts a text at this letter: punctuation, and the symbols of ASCII."""
    if not letter:
        return False
    return unicodedata.category(letter).startswith("P") or letter in "$+<=>^`|~"


def letter_end(text: str, end: int) -> int:
    """`end`, moved behind the marks of the letter before it: tokenizers that drop accents leave them out of a word."""
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end

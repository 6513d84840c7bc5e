"""Texts → token rows: the whole batch at once, rows laid end to end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from backends.errors import CorruptFileError

_SPACES = re.compile(r"\s+")
# A word piece holds at most 100 characters (longer words become one unknown token), so no more
# than this of a text can reach the model; tokenising 10 MB to keep 128 tokens would take seconds.
_CHARACTERS_PER_TOKEN = 101


@dataclass(frozen=True)
class TokenRows:
    """A batch of tokenised texts without padding.

    Shape:
        token_ids, type_ids, positions: `[T]`; row_offsets: `[R + 1]`; truncated: `[R]`.
    """

    token_ids: npt.NDArray[np.int64]
    type_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    row_offsets: npt.NDArray[np.int64]
    truncated: npt.NDArray[np.bool_]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.row_offsets)


class RootTokenizer:
    """The root's own tokenizer, cutting texts at `max_tokens` (special tokens included)."""

    def __init__(self, path: Path, max_tokens: int) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for missing and malformed files
            raise CorruptFileError(f"{path} is not a readable tokenizer: {error}") from error
        self._tokenizer.no_padding()
        # A text that spells "[SEP]" or "[PAD]" means those characters; only the template adds special tokens.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.enable_truncation(max_tokens)
        self._max_characters = max_tokens * _CHARACTERS_PER_TOKEN

    def encode(self, texts: Sequence[str]) -> TokenRows:
        shortened = [self._shorten(text) for text in texts]
        encodings = self._tokenizer.encode_batch_fast([text for text, _ in shortened])
        lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
        row_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        cut = (bool(encoding.overflowing) for encoding in encodings)
        return TokenRows(
            token_ids=_flatten([encoding.ids for encoding in encodings]),
            type_ids=_flatten([encoding.type_ids for encoding in encodings]),
            positions=np.arange(row_offsets[-1]) - np.repeat(row_offsets[:-1], lengths),
            row_offsets=row_offsets,
            truncated=np.fromiter(
                (early or late for (_, early), late in zip(shortened, cut, strict=True)), np.bool_, len(encodings)
            ),
        )

    def _shorten(self, text: str) -> tuple[str, bool]:
        """The part of a text that can reach the model, and whether any was left out."""
        if len(text) <= self._max_characters:
            return text, False
        head = _SPACES.sub(" ", text[: 4 * self._max_characters]).lstrip()
        return head[: self._max_characters], True


def _flatten(rows: list[list[int]]) -> npt.NDArray[np.int64]:
    if not rows:
        return np.empty(0, np.int64)
    return np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])

"""Texts → token rows: the whole batch at once, rows laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from backends.errors import CorruptFileError

# Tokenising 10 MB to keep 128 tokens would take seconds, so a long text is read in growing windows until it fills
# the row. Ordinary text does so in the first one; only pages of blanks or words of thousands of letters go on to the
# last, behind which nothing is read.
_CHARACTERS_PER_TOKEN = (32, 512, 8192)


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
        self._windows = [max_tokens * characters for characters in _CHARACTERS_PER_TOKEN]

    def encode(self, texts: Sequence[str]) -> TokenRows:
        heads = [_head(text, self._windows[0]) for text in texts]
        encodings: list[Encoding] = self._tokenizer.encode_batch_fast(heads)
        truncated = np.fromiter((bool(encoding.overflowing) for encoding in encodings), np.bool_, len(encodings))
        for place, (text, head) in enumerate(zip(texts, heads, strict=True)):
            if len(head) < len(text) and not truncated[place]:
                encodings[place], truncated[place] = self._encode_long(text)
        return _token_rows(encodings, truncated)

    def _encode_long(self, text: str) -> tuple[Encoding, bool]:
        """A text that does not fill its row from the first window, and whether more than blanks was left out."""
        for window in self._windows[1:]:
            head = _head(text, window)
            encoding: Encoding = self._tokenizer.encode_batch_fast([head])[0]
            if encoding.overflowing or len(head) == len(text):
                break
        left_out = text[len(head) :]
        return encoding, bool(encoding.overflowing) or bool(left_out and not left_out.isspace())


def _head(text: str, window: int) -> str:
    """The beginning of a text, not ending inside a word where that can be helped."""
    if len(text) <= window:
        return text
    head = text[:window]
    return head if text[window].isspace() else head[: head.rfind(" ") + 1] or head


def _token_rows(encodings: Sequence[Encoding], truncated: npt.NDArray[np.bool_]) -> TokenRows:
    lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
    row_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return TokenRows(
        token_ids=_flatten([encoding.ids for encoding in encodings]),
        type_ids=_flatten([encoding.type_ids for encoding in encodings]),
        positions=np.arange(row_offsets[-1]) - np.repeat(row_offsets[:-1], lengths),
        row_offsets=row_offsets,
        truncated=truncated,
    )


def _flatten(rows: list[list[int]]) -> npt.NDArray[np.int64]:
    if not rows:
        return np.empty(0, np.int64)
    return np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])

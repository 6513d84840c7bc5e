"""Texts → token rows: the whole batch at once, rows laid end to end."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer, models, normalizers

from backends.errors import CorruptFileError
from backends.root.word_marks import WordMarks, marks_of_vocabulary
from backends.root.words import RowWords

Text = str | tuple[str, str]
"""A text, or the two segments of a pair."""

# Tokenising 10 MB to keep 128 tokens would take seconds, so a long text is read in two windows at most. Ordinary text
# fills its row in the first one; only pages of blanks or words of thousands of letters go on to the second, behind
# which nothing is read: a root of 128 tokens spends 2 ms on it. Where that would only make the same word longer, which
# is one unknown token, the first one is enough.
_CHARACTERS_PER_TOKEN = 32
MOST_CHARACTERS = 8192
_REPLACEMENT = "\ufffd"
_LONGEST_WORD = 256
"""In characters. Tokenizers of words know none that is longer, and by default none of more than 100."""
_MOST_KINDS = 128
"""Of characters: where more differ, to look at each would take as long as to tokenise."""


@dataclass(frozen=True)
class TokenRows:
    """A batch of tokenised texts without padding.

    Shape:
        token_ids, type_ids, positions: `[T]`; row_offsets: `[R + 1]`; truncated: `[R]`; words: R, of those rows whose
        words were requested; middles: R, of pairs the first token of the second segment.
    """

    token_ids: npt.NDArray[np.int64]
    type_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    row_offsets: npt.NDArray[np.int64]
    truncated: npt.NDArray[np.bool_]
    words: Sequence[RowWords | None]
    middles: Sequence[int | None]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.row_offsets)

    def rows_of(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows of some tokens.

        Shape: [K] -> [K]
        """
        rows: npt.NDArray[np.int64] = np.searchsorted(self.row_offsets, tokens, side="right") - 1
        return rows


class RootTokenizer:
    """The root's own tokenizer, cutting texts at `max_tokens` (special tokens included).

    The ids 0 and `pad_id` are exchanged, so that 0 is free to mean an empty slot (see `RootGeometry`).
    """

    def __init__(self, path: Path, max_tokens: int, pad_id: int = 0) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for missing and malformed files
            raise CorruptFileError(f"{path} is not a readable tokenizer: {error}") from error
        self._tokenizer.no_padding()
        # A text that spells "[SEP]" or "[PAD]" means those characters; only the template adds special tokens.
        self._tokenizer.encode_special_tokens = True
        _take_apart(self._tokenizer)
        self.max_tokens = max_tokens
        self._tokenizer.enable_truncation(max_tokens)
        self.num_special_tokens: int = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        self._pad_id = pad_id
        self._window = max_tokens * _CHARACTERS_PER_TOKEN

    @property
    def special_ids(self) -> dict[str, int]:
        """The added tokens that stand for no text, by their names, such as `[MASK]`."""
        added = self._tokenizer.get_added_tokens_decoder()
        ids = exchanged(np.array(list(added), np.int64), self._pad_id).tolist()
        return {token.content: number for number, token in zip(ids, added.values(), strict=True) if token.special}

    def encode(self, texts: Sequence[Text], with_words: Sequence[bool] = ()) -> TokenRows:
        """Rows of tokens; `with_words` says of each text whether its words are wanted; left out, none are."""
        # Without offsets the library is faster, so most batches go without.
        tokenise = self._tokenizer.encode_batch if any(with_words) else self._tokenizer.encode_batch_fast
        heads = [_head(text, self._window) for text in texts]
        encodings: list[Encoding] = tokenise(heads)
        truncated = np.fromiter((bool(encoding.overflowing) for encoding in encodings), np.bool_, len(encodings))
        for row, (text, head) in enumerate(zip(texts, heads, strict=True)):
            if head != text and not truncated[row]:
                if self._window < MOST_CHARACTERS:
                    head = _head(text, MOST_CHARACTERS)
                    if any(with_words) or not self._is_one_word_each(encodings[row], head):
                        encodings[row] = tokenise([head])[0]
                truncated[row] = bool(encodings[row].overflowing) or _leaves_out(text, head)
        wanted = with_words or [False] * len(texts)
        words = [
            RowWords.of(one, text) if wants and isinstance(text, str) else None
            for one, text, wants in zip(encodings, texts, wanted, strict=True)
        ]
        middles = [None if isinstance(text, str) else _middle(one) for one, text in zip(encodings, texts, strict=True)]
        return _token_rows(encodings, truncated, words, middles, self._pad_id)

    def _is_one_word_each(self, begun: Encoding, head: Text) -> bool:
        """Tell whether each segment is one token at most by its first window, and what follows cannot change that."""
        segments = _segments(head)
        num_special = self._tokenizer.num_special_tokens_to_add(is_pair=len(segments) == 2)
        is_one_each = len(begun.ids) <= num_special + len(segments)
        return is_one_each and all(_is_one_word(segment, self._window) for segment in segments)

    def word_marks(self, token_ids: npt.NDArray[np.int64]) -> WordMarks:
        """Return what each of some tokens is to the words of its text.

        Shape: `[T]` → `[T]`
        """
        return self._marks[exchanged(token_ids, self._pad_id)]

    @cached_property
    def _marks(self) -> WordMarks:
        return marks_of_vocabulary(self._tokenizer)


def _take_apart(tokenizer: Tokenizer) -> None:
    """Keep a model whose pieces are whole words from finding its special tokens in a text: a blank goes into them."""
    if not isinstance(tokenizer.model, models.Unigram):
        return
    names = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    apart = [normalizers.Replace(name, f"{name[0]} {name[1:]}") for name in names if len(name) > 1]
    before = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([*before, *apart])


def exchanged(ids: npt.NDArray[np.int64], pad_id: int) -> npt.NDArray[np.int64]:
    """Swap 0 and `pad_id`; a second swap restores the ids."""
    if pad_id == 0:
        return ids
    return np.where(ids == 0, pad_id, np.where(ids == pad_id, 0, ids))


def _segments(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def _is_one_word(segment: str, window: int) -> bool:
    """Tell whether a tokenizer makes one word of it, which the window alone makes too long to be known; in doubt, no.

    A tokenizer may remove marks, so they count for nothing: of marks alone there is no word, or one.
    """
    kinds = set(segment)
    if len(kinds) > _MOST_KINDS:
        return False
    class_of = {character: _class_in_words(character) for character in kinds}
    classes = set(class_of.values()) - {"M"}
    if not classes:
        return True
    num_shown = sum(class_of[character] != "M" for character in segment[:window])
    return len(classes) == 1 and None not in classes and num_shown > _LONGEST_WORD


def _class_in_words(character: str) -> str | None:
    """Return L for a letter, N for a number, S for a picture, M for a mark, all as tokenizers decompose it.

    None where it may end a word, be one of its own as ideographs are, or vanish.
    """
    found: set[str] = set()
    for part in unicodedata.normalize("NFKD", character):
        is_sign = part.isascii() and not part.isalnum()
        found.add("" if is_sign or part == _REPLACEMENT or _is_ideograph(part) else unicodedata.category(part)[0])
    shown = found - {"M"} or found
    (only,) = shown if len(shown) == 1 else ("",)
    return only if only and only in "LNSM" else None


def _is_ideograph(character: str) -> bool:
    return unicodedata.name(character, "").startswith("CJK")


def _leaves_out(text: Text, head: Text) -> bool:
    """Tell whether more than blanks is left out."""
    left_out = [segment[len(kept) :] for segment, kept in zip(_segments(text), _segments(head), strict=True)]
    return any(rest and not rest.isspace() for rest in left_out)


def _head(text: Text, window: int) -> Text:
    return (
        _segment_head(text, window)
        if isinstance(text, str)
        else (_segment_head(text[0], window), _segment_head(text[1], window))
    )


def _segment_head(text: str, window: int) -> str:
    """The beginning of a text, not ending inside a word where that can be helped: near its end it has a blank."""
    if len(text) <= window:
        return text
    head = text[:window]
    blank = -1 if text[window].isspace() else head.rfind(" ", window - min(window, _LONGEST_WORD))
    return head if blank < 0 else head[: blank + 1]


def _middle(pair: Encoding) -> int | None:
    """None where the second segment has no token."""
    segments = pair.sequence_ids
    return segments.index(1) if 1 in segments else None


def _token_rows(
    encodings: Sequence[Encoding],
    truncated: npt.NDArray[np.bool_],
    words: Sequence[RowWords | None],
    middles: Sequence[int | None],
    pad_id: int,
) -> TokenRows:
    lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
    row_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return TokenRows(
        token_ids=exchanged(_flatten([encoding.ids for encoding in encodings]), pad_id),
        type_ids=_flatten([encoding.type_ids for encoding in encodings]),
        positions=np.arange(row_offsets[-1]) - np.repeat(row_offsets[:-1], lengths),
        row_offsets=row_offsets,
        truncated=truncated,
        words=words,
        middles=middles,
    )


def _flatten(rows: list[list[int]]) -> npt.NDArray[np.int64]:
    if not rows:
        return np.empty(0, np.int64)
    return np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])

"""Fragments of token rows and their exact keys.

Up to three ids (left, centre, right) share one 64-bit word; five are that word and a second one for the outer two.

Usage:
    keys = fragment_keys(token_ids, row_offsets)
    fallback = right_bigram(keys)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backends.errors import InvalidArgumentError
from backends.plot.arrays import Ids, Keys, Words

PAD_ID = 0
ID_BITS = 21
MAX_IDS_PER_WORD = 64 // ID_BITS
ID_LIMIT = 1 << ID_BITS

WIDE_IDS = 5
WIDE_ID_BITS = 18
"""Bits of an outer id: two of them and a row's number share a word in the index."""
WIDE_ID_LIMIT = 1 << WIDE_ID_BITS
WIDE_KEY = np.dtype([("outer", "<u8"), ("inner", "<u8")])


@dataclass(frozen=True)
class FragmentShape:
    """Numbers of neighbours in a token's fragment; the encoder's tri-gram has one before and one after."""

    before: int
    after: int

    def __post_init__(self) -> None:
        if self.before < 0 or self.after < 0 or self.n > WIDE_IDS:
            raise InvalidArgumentError(
                f"a fragment of {self.before} + 1 + {self.after} ids does not fit a key of {WIDE_IDS} ids"
            )

    @property
    def n(self) -> int:
        return self.before + 1 + self.after

    @classmethod
    def centred(cls, n: int) -> FragmentShape:
        """Half of the other ids before the token, the odd one too: (1, 0), (1, 1), (2, 2)."""
        return cls(before=n // 2, after=(n - 1) // 2)


CENTRED_TRIGRAM = FragmentShape(before=1, after=1)
_LEFT_BIGRAM = FragmentShape(before=1, after=0)
_CENTRED_FIVE = FragmentShape(before=2, after=2)


def id_limit(n: int) -> int:
    """Ids of fragments of `n` lie below this."""
    return WIDE_ID_LIMIT if n == WIDE_IDS else ID_LIMIT


def check_batch(token_ids: Ids, row_offsets: Ids) -> None:
    """Reject a flat batch whose ids or offsets cannot be cut into fragments."""
    if token_ids.ndim != 1 or row_offsets.ndim != 1 or row_offsets.size == 0:
        raise InvalidArgumentError("a flat batch is token_ids [tokens] and row_offsets [rows + 1]")
    if row_offsets[0] != 0 or row_offsets[-1] != token_ids.size or (row_offsets[1:] < row_offsets[:-1]).any():
        raise InvalidArgumentError(f"row offsets must rise from 0 to the number of tokens, {token_ids.size}")
    check_ids(token_ids)


def check_ids(token_ids: Ids, limit: int = ID_LIMIT) -> None:
    if token_ids.size == 0:
        return
    lowest, highest = int(token_ids.min()), int(token_ids.max())
    if lowest <= PAD_ID or highest >= limit:
        wrong = lowest if lowest <= PAD_ID else highest
        raise InvalidArgumentError(f"token id {wrong} is outside 1..{limit - 1}")


def fragments(token_ids: Ids, row_offsets: Ids, shape: FragmentShape = CENTRED_TRIGRAM) -> Ids:
    """The ids of every token's fragment.

    Semantics: column j of token i holds the id at i - before + j, or 0 where that lies outside the token's row.
    Shape: token_ids [T], row_offsets [R + 1] -> [T, n]
    """
    check_batch(token_ids, row_offsets)
    lengths = np.diff(row_offsets)
    first = np.repeat(row_offsets[:-1], lengths)[:, None]
    end = np.repeat(row_offsets[1:], lengths)[:, None]
    position = np.arange(token_ids.size)[:, None] + np.arange(-shape.before, shape.after + 1)
    inside = (position >= first) & (position < end)
    return np.where(inside, token_ids[np.where(inside, position, 0)], PAD_ID)


def pack(ids: Ids) -> Keys:
    """Make one key per fragment: up to three ids below 2^21, the first in the highest bits, or five below 2^18.

    Shape: [F, n] -> [F]
    """
    if ids.ndim == 2 and ids.shape[1] == WIDE_IDS:
        inner = _packed_word(ids[:, 1:4], WIDE_ID_LIMIT, ID_BITS)
        return _wide(inner, _packed_word(ids[:, [0, 4]], WIDE_ID_LIMIT, WIDE_ID_BITS))
    if ids.ndim != 2 or not 1 <= ids.shape[1] <= MAX_IDS_PER_WORD:
        raise InvalidArgumentError(
            f"fragments of 1 to {MAX_IDS_PER_WORD} or of {WIDE_IDS} ids can be packed, not shape {ids.shape}"
        )
    return _packed_word(ids, ID_LIMIT, ID_BITS)


def unpack(keys: Keys, n: int = CENTRED_TRIGRAM.n) -> Ids:
    """The ids that `pack` was given; wide keys always have five.

    Shape: [F] -> [F, n]
    """
    if keys.dtype != WIDE_KEY:
        return _unpacked_word(keys, n, ID_BITS)
    outer = _unpacked_word(keys["outer"], 2, WIDE_ID_BITS)
    return np.hstack([outer[:, :1], _unpacked_word(keys["inner"], 3, ID_BITS), outer[:, 1:]])


def fragment_keys(token_ids: Ids, row_offsets: Ids, shape: FragmentShape = CENTRED_TRIGRAM) -> Keys:
    """The keys of the centred fragments of two, three or five ids, without the [T, n] array between.

    Semantics: a fragment of two, (x0, x1), has the key of the tri-gram (x0, x1, 0).
    Shape: token_ids [T], row_offsets [R + 1] -> [T]
    """
    check_batch(token_ids, row_offsets)
    ids = token_ids.astype(np.uint64)
    if shape == CENTRED_TRIGRAM:
        return _trigrams(ids, row_offsets)
    if shape == _LEFT_BIGRAM:
        return left_bigram(_trigrams(ids, row_offsets))
    if shape == _CENTRED_FIVE:
        check_ids(token_ids, WIDE_ID_LIMIT)
        return _wide(_trigrams(ids, row_offsets), _outer_pairs(ids, row_offsets))
    raise InvalidArgumentError(f"there are no keys for fragments of {shape.before} + 1 + {shape.after} ids")


def trigram(keys: Keys) -> Words:
    """(x0, x1, x2, x3, x4) -> (x1, x2, x3); keys of three ids are left as they are."""
    return keys["inner"] if keys.dtype == WIDE_KEY else keys


def left_bigram(keys: Keys) -> Words:
    """(x0, x1, x2) -> (x0, x1, 0)."""
    return trigram(keys) & ~np.uint64(ID_LIMIT - 1)


def right_bigram(keys: Keys) -> Words:
    """(x0, x1, x2) -> (0, x1, x2): the fallback that drops the left neighbour."""
    return trigram(keys) & np.uint64((1 << 2 * ID_BITS) - 1)


def unigram(keys: Keys) -> Ids:
    """(x0, x1, x2) -> x1."""
    return ((trigram(keys) >> np.uint64(ID_BITS)) & np.uint64(ID_LIMIT - 1)).view(np.int64)


def _trigrams(ids: Words, row_offsets: Ids) -> Words:
    keys = ids << np.uint64(ID_BITS)
    if ids.size < 2:
        return keys
    starts = row_offsets[(row_offsets > 0) & (row_offsets < ids.size)]
    right = ids[1:].copy()
    right[starts - 1] = PAD_ID
    keys[:-1] |= right
    left = ids[:-1] << np.uint64(2 * ID_BITS)
    left[starts - 1] = PAD_ID
    keys[1:] |= left
    return keys


def _outer_pairs(ids: Words, row_offsets: Ids) -> Words:
    """Pack the ids two positions before and two after every token into one word."""
    outer = np.zeros(ids.size, np.uint64)
    if ids.size <= 2:
        return outer
    # Tokens whose partner two positions on lies in another row.
    across = np.concatenate([row_offsets[1:-1] - 1, row_offsets[1:-1] - 2])
    across = across[(across >= 0) & (across < ids.size - 2)]
    right = ids[2:].copy()
    right[across] = PAD_ID
    outer[:-2] |= right
    left = ids[:-2] << np.uint64(WIDE_ID_BITS)
    left[across] = PAD_ID
    outer[2:] |= left
    return outer


def _wide(inner: Words, outer: Words) -> Keys:
    keys = np.empty(inner.size, WIDE_KEY)
    keys["inner"], keys["outer"] = inner, outer
    return keys


def _packed_word(ids: Ids, limit: int, id_bits: int) -> Words:
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= limit):
        raise InvalidArgumentError(f"a fragment holds an id outside 0..{limit - 1}")
    word = np.zeros(ids.shape[0], np.uint64)
    for column in ids.T:
        word = (word << np.uint64(id_bits)) | column.astype(np.uint64)
    return word


def _unpacked_word(word: Words, n: int, id_bits: int) -> Ids:
    shifts = np.arange(n - 1, -1, -1, dtype=np.uint64) * np.uint64(id_bits)
    return ((word[:, None] >> shifts) & np.uint64((1 << id_bits) - 1)).astype(np.int64)

"""Fragments of token rows and their exact 64-bit keys.

Usage:
    keys = fragment_keys(token_ids, row_offsets)
    fallback = right_bigram(keys)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backends.errors import InvalidArgumentError
from backends.plot.arrays import Ids, Keys

PAD_ID = 0
ID_BITS = 21
MAX_IDS_PER_KEY = 64 // ID_BITS
ID_LIMIT = 1 << ID_BITS


@dataclass(frozen=True)
class FragmentShape:
    """Which neighbours of a token make its fragment; the encoder's tri-gram is one before and one after."""

    before: int
    after: int

    def __post_init__(self) -> None:
        if self.before < 0 or self.after < 0 or self.n > MAX_IDS_PER_KEY:
            raise InvalidArgumentError(
                f"a fragment of {self.before} + 1 + {self.after} ids does not fit a key of {MAX_IDS_PER_KEY} ids"
            )

    @property
    def n(self) -> int:
        return self.before + 1 + self.after


CENTRED_TRIGRAM = FragmentShape(before=1, after=1)


def check_batch(token_ids: Ids, row_offsets: Ids) -> None:
    """Refuse a flat batch whose ids or offsets cannot be cut into fragments."""
    if token_ids.ndim != 1 or row_offsets.ndim != 1 or row_offsets.size == 0:
        raise InvalidArgumentError("a flat batch is token_ids [tokens] and row_offsets [rows + 1]")
    if row_offsets[0] != 0 or row_offsets[-1] != token_ids.size or (row_offsets[1:] < row_offsets[:-1]).any():
        raise InvalidArgumentError(f"row offsets must rise from 0 to the number of tokens, {token_ids.size}")
    check_ids(token_ids)


def check_ids(token_ids: Ids) -> None:
    if token_ids.size == 0:
        return
    lowest, highest = int(token_ids.min()), int(token_ids.max())
    if lowest <= PAD_ID or highest >= ID_LIMIT:
        wrong = lowest if lowest <= PAD_ID else highest
        raise InvalidArgumentError(f"token id {wrong} is outside 1..{ID_LIMIT - 1}")


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
    """One key per fragment, the first id in the highest bits; at most three ids, each below 2^21.

    Shape: [F, n] -> [F]
    """
    if ids.ndim != 2 or not 1 <= ids.shape[1] <= MAX_IDS_PER_KEY:
        raise InvalidArgumentError(f"fragments of 1 to {MAX_IDS_PER_KEY} ids can be packed, not shape {ids.shape}")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= ID_LIMIT):
        raise InvalidArgumentError(f"a fragment holds an id outside 0..{ID_LIMIT - 1}")
    keys = np.zeros(ids.shape[0], np.uint64)
    for column in ids.T:
        keys = (keys << np.uint64(ID_BITS)) | column.astype(np.uint64)
    return keys


def unpack(keys: Keys, n: int = CENTRED_TRIGRAM.n) -> Ids:
    """The ids that `pack` was given.

    Shape: [F] -> [F, n]
    """
    shifts = np.arange(n - 1, -1, -1, dtype=np.uint64) * np.uint64(ID_BITS)
    return ((keys[:, None] >> shifts) & np.uint64(ID_LIMIT - 1)).astype(np.int64)


def fragment_keys(token_ids: Ids, row_offsets: Ids) -> Keys:
    """`pack(fragments(...))` of the centred tri-gram, without the [T, 3] array between.

    Shape: token_ids [T], row_offsets [R + 1] -> [T]
    """
    check_batch(token_ids, row_offsets)
    ids = token_ids.astype(np.uint64)
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


def right_bigram(keys: Keys) -> Keys:
    """(x0, x1, x2) -> (0, x1, x2): the fallback that drops the left neighbour."""
    return keys & np.uint64((1 << 2 * ID_BITS) - 1)


def unigram(keys: Keys) -> Ids:
    """(x0, x1, x2) -> x1."""
    return ((keys >> np.uint64(ID_BITS)) & np.uint64(ID_LIMIT - 1)).view(np.int64)

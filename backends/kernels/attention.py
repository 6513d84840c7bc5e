"""Attention inside each row of a batch: one loop over all rows and heads, which gathers and masks nothing.

Rows are short, and kernels that were made for long ones take most of their time to begin. A head's keys and values and
the scores of a few tokens stay in the cache of one core. A row of NaN or infinity spoils itself only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from backends.kernels.compiling import (
    BF16,
    COUNT,
    COUNTS,
    FLAT_BF16,
    FLAT_FP32,
    FP32,
    INFINITE_BITS,
    NAN,
    absolute_bits_of,
    as_stored,
    bits_of,
    compiled,
    from_bits,
    larger,
    read,
    smaller,
    total_of,
)
from backends.kernels.tile import TILE_COLUMNS, TILE_ROWS, filled, multiply_tile

_LOG2_E = np.float32(1.4426950408889634)
_ROUNDING = np.float32(1.5 * 2**23)
_BITS_OF_126, _MANTISSA_BITS, _EXPONENT_OF_1 = np.int32(0x42FC0000), np.int32(23), np.int32(127)
_ONE = np.float32(1)
_LEAST, _NOTHING = np.int32(-(2**31)), np.int32(0)


@njit(inline="always")
def _power_of_2(size: Any) -> Any:
    """Compute 2^-size; from 126 on it is that of 126. Its error is below 2e-7 of it."""
    exponent = -from_bits(smaller(absolute_bits_of(size), _BITS_OF_126))
    whole = (exponent + _ROUNDING) - _ROUNDING
    rest = exponent - whole
    power = np.float32(1.5403530e-4) * rest + np.float32(1.3333558e-3)
    power = power * rest + np.float32(9.6181291e-3)
    power = power * rest + np.float32(5.5504109e-2)
    power = power * rest + np.float32(2.4022651e-1)
    power = power * rest + np.float32(6.9314718e-1)
    power = power * rest + _ONE
    return power * from_bits((np.int32(whole) + _EXPONENT_OF_1) << _MANTISSA_BITS)


@njit(inline="always")
def _ordered(number: Any) -> Any:
    """Return an integer that is in the order of the numbers, and the same again for an integer that this returned."""
    bits = bits_of(number)
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@compiled(types.float32(FLAT_FP32))
def _softmax(scores: Any) -> Any:
    """Replace scores, in powers of 2, by their softmax times what is returned; NaN if one is no number or infinite."""
    largest, extreme = _LEAST, _NOTHING
    for key in range(len(scores)):
        largest = larger(largest, _ordered(scores[key]))
        extreme = larger(extreme, absolute_bits_of(scores[key]))
    if extreme >= INFINITE_BITS:
        return NAN
    highest = from_bits(largest ^ ((largest >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    for key in range(len(scores)):
        scores[key] = _power_of_2(highest - scores[key])
    return total_of(scores)


@compiled(
    *(
        types.void(flat, flat, flat, COUNT, COUNTS, COUNTS, COUNT, states)
        for flat, states in ((FLAT_FP32, FP32), (FLAT_BF16, BF16))
    )
)
def attend_in_rows(
    query: Any, key: Any, value: Any, distance: Any, starts: Any, lengths: Any, num_heads: Any, context: Any
) -> None:
    """Compute the attention of rows.

    Shape:
        query, key, value: One token after the other, their first states `distance` from each other.
        starts, lengths: Of the rows, in tokens.
        context: `[T, H]`; tokens of no row are left as they are.
    """
    size = context.shape[1] // num_heads
    in_powers_of_2 = _LOG2_E / np.sqrt(np.float32(size))
    columns, longest = filled(size, TILE_COLUMNS), lengths.max()
    queries = np.zeros(filled(longest, TILE_ROWS) * size, np.float32)
    keys = np.zeros(size * filled(longest, TILE_COLUMNS), np.float32)
    values = np.zeros(longest * columns, np.float32)
    scores = np.zeros(TILE_ROWS * filled(longest, TILE_COLUMNS), np.float32)
    outputs = np.zeros(TILE_ROWS * columns, np.float32)
    one_key = np.zeros(size, np.float32)
    for row in range(len(starts)):
        start, length = starts[row], lengths[row]
        width = filled(length, TILE_COLUMNS)
        for head in range(num_heads):
            for token in range(length):
                at = (start + token) * distance + head * size
                read(query[at : at + size], in_powers_of_2, queries[token * size : (token + 1) * size])
                read(key[at : at + size], _ONE, one_key)
                for channel in range(size):
                    keys[np.uint64(channel * width + token)] = one_key[channel]
                read(value[at : at + size], _ONE, values[token * columns : token * columns + size])
            for first in range(0, length, TILE_ROWS):
                for column in range(0, width, TILE_COLUMNS):
                    multiply_tile(queries, first * size, size, keys, column, width, scores, column, width, size)
                num_tokens = min(TILE_ROWS, length - first)
                sums = np.empty(TILE_ROWS, np.float32)
                for token in range(num_tokens):
                    sums[token] = _softmax(scores[token * width : token * width + length])
                for column in range(0, columns, TILE_COLUMNS):
                    multiply_tile(scores, 0, width, values, column, columns, outputs, column, columns, length)
                for token in range(num_tokens):
                    share = _ONE / sums[token]
                    line = outputs[token * columns : token * columns + size]
                    into = context[start + first + token, head * size : (head + 1) * size]
                    for channel in range(size):
                        into[channel] = as_stored(line[channel] * share, into[channel])

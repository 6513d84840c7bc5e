"""Small products and norms of a batch's segments, each with its own row of weights, in place.

Batched products want segments of one length, so tokens are gathered before and scattered after them. Here each segment
is multiplied where it lies, a few tokens at a time.

Shape:
    starts, ends, rows: Of the segments, in tokens, and the row of weights of each.
    weights: `[rows, in, out]`, of vectors `[rows, n]`.
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
    as_fp32,
    as_stored,
    compiled,
    read,
    total_of,
)
from backends.kernels.tile import TILE_COLUMNS, TILE_ROWS, filled, multiply_tile

_ZERO, _ONE = np.float32(0), np.float32(1)
_SEGMENTS = COUNTS, COUNTS, COUNTS
_PRODUCTS = [
    types.void(flat, COUNT, *_SEGMENTS, FP32, matrices, vectors)
    for flat, states, matrices in (
        (FLAT_FP32, FP32, types.float32[:, :, ::1]),
        (FLAT_BF16, BF16, types.int16[:, :, ::1]),
    )
    for vectors in (types.none, states)
]


@njit(inline="always")
def _multiply(tokens: Any, matrix: Any, lines: Any, sums: Any) -> None:
    """Multiply `TILE_ROWS` tokens, one after the other, by a matrix `[in, out]`.

    Where a matrix does not end with a whole tile, its lines are copied to `lines`, with zeros behind them.
    """
    count, columns = matrix.shape
    width = filled(columns, TILE_COLUMNS)
    if width == columns:
        right = matrix.reshape(count * columns)
        for column in range(0, width, TILE_COLUMNS):
            multiply_tile(tokens, 0, count, right, column, width, sums, column, width, count)
    else:
        for line in range(count):
            read(matrix[line], _ONE, lines[line * width : line * width + columns])
        for column in range(0, width, TILE_COLUMNS):
            multiply_tile(tokens, 0, count, lines, column, width, sums, column, width, count)


@njit(inline="always")
def _room(matrices: Any) -> Any:
    """Return room for a copied matrix, nothing where none is copied, and for `TILE_ROWS` tokens before and after."""
    _, count, columns = matrices.shape
    width = filled(columns, TILE_COLUMNS)
    copied = 0 if width == columns else count * width
    return (
        np.zeros(copied, np.float32),
        np.zeros(TILE_ROWS * count, np.float32),
        np.zeros(TILE_ROWS * width, np.float32),
    )


@compiled(*_PRODUCTS)
def multiply_segments(
    states: Any, distance: Any, starts: Any, ends: Any, rows: Any, products: Any, weights: Any, vectors: Any
) -> None:
    """Multiply each segment's states by its matrix, and add its vector if there are vectors.

    Shape:
        states: One token after the other, their first states `distance` from each other.
        products: `[T, out]`; tokens of no segment are left as they are.
    """
    lines, tokens, sums = _room(weights)
    _, count, columns = weights.shape
    width = filled(columns, TILE_COLUMNS)
    for segment in range(len(starts)):
        for first in range(starts[segment], ends[segment], TILE_ROWS):
            num_tokens = min(TILE_ROWS, ends[segment] - first)
            for token in range(num_tokens):
                at = (first + token) * distance
                read(states[at : at + count], _ONE, tokens[token * count : (token + 1) * count])
            _multiply(tokens, weights[rows[segment]], lines, sums)
            for token in range(num_tokens):
                into, product = products[first + token], sums[token * width : token * width + columns]
                for column in range(columns):
                    into[column] = product[column]
                    if vectors is not None:
                        into[column] += as_fp32(vectors[rows[segment], column])


@compiled(*_PRODUCTS)
def add_products(
    states: Any, distance: Any, starts: Any, ends: Any, rows: Any, inputs: Any, weights: Any, vectors: Any
) -> None:
    """Add the product of each segment's inputs and its matrix to its states, and its vector if there are vectors.

    Shape:
        inputs: `[T, in]`
    """
    lines, tokens, sums = _room(weights)
    _, count, columns = weights.shape
    width = filled(columns, TILE_COLUMNS)
    for segment in range(len(starts)):
        for first in range(starts[segment], ends[segment], TILE_ROWS):
            num_tokens = min(TILE_ROWS, ends[segment] - first)
            for token in range(num_tokens):
                tokens[token * count : (token + 1) * count] = inputs[first + token]
            _multiply(tokens, weights[rows[segment]], lines, sums)
            for token in range(num_tokens):
                at = (first + token) * distance
                into, product = states[at : at + columns], sums[token * width : token * width + columns]
                for column in range(columns):
                    total = as_fp32(into[column]) + product[column]
                    if vectors is not None:
                        total += as_fp32(vectors[rows[segment], column])
                    into[column] = as_stored(total, into[column])


@compiled(types.float32(FLAT_FP32), reorders_sums=True)
def _sum_of_squares(line: Any) -> Any:
    total = _ZERO
    for index in range(len(line)):
        total += line[index] * line[index]
    return total


@compiled(*(types.void(states, *_SEGMENTS, states, states, types.float32, states) for states in (FP32, BF16)))
def normalise_segments(
    states: Any, starts: Any, ends: Any, rows: Any, weights: Any, biases: Any, eps: Any, normed: Any
) -> None:
    """Compute the layer norm of each segment's states with its own weight and bias.

    Shape:
        states, normed: `[T, n]`; tokens of no segment are left as they are.
    """
    channels = states.shape[1]
    line = np.empty(channels, np.float32)
    for segment in range(len(starts)):
        weight, bias = weights[rows[segment]], biases[rows[segment]]
        for token in range(starts[segment], ends[segment]):
            read(states[token], _ONE, line)
            mean = total_of(line) / np.float32(channels)
            for channel in range(channels):
                line[channel] -= mean
            scale = _ONE / np.sqrt(_sum_of_squares(line) / np.float32(channels) + eps)
            into = normed[token]
            for channel in range(channels):
                changed = line[channel] * scale * as_fp32(weight[channel]) + as_fp32(bias[channel])
                into[channel] = as_stored(changed, into[channel])

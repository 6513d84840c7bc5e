"""What stands around a product in int8, in one pass each: quantising, GELU, scales, bias and residual.

PyTorch needs six to ten passes for each, and on processors that multiply int8 fast these take longer than the products.
A row stays in the cache of its core between the pass that looks for its scale and the pass that rounds.

Shape:
    Values are `[T, n]` uint8; scales `[T]` in fp32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from backends.kernels.compiling import (
    BF16,
    BY_CHANNEL,
    BY_TOKEN,
    FP32,
    INFINITE_BITS,
    NAN,
    absolute_bits_of,
    as_fp32,
    as_stored,
    bits_of,
    compiled,
    from_bits,
    larger,
    smaller,
)

_INT32, _UINT8 = ir.IntType(32), ir.IntType(8)
_VALUES = types.uint8[:, ::1]
# A float of this size has no bits left for fractions: adding it rounds, and its last byte is the integer.
_ROUNDING = np.float32(1.5 * 2**23)
_LEVELS = np.float32(127)
_ZERO_POINT = np.float32(128)
# Half a level more than this would be 255, beyond which an unsigned byte begins again at 0.
_ONE_SIDED_LEVELS = np.float32(254)
_ONE, _HALF = np.float32(1), np.float32(0.5)
_NOTHING = np.int32(0)
_BITS_OF_4 = np.int32(0x40800000)


@intrinsic
def _last_byte(typing: Any, number: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        return build.trunc(build.bitcast(args[0], _INT32), _UINT8)

    return types.uint8(types.float32), generate


@njit(inline="always")
def _gelu(number: Any) -> Any:
    """Compute GELU by a polynomial in number²; it is off by less than 0.0003 anywhere.

    Semantics:
        gelu(x) = max(x, 0) - a · (1/2 - a · p(a²)) with a = |x|, where the second term vanishes from 4 on.
    """
    bits = bits_of(number)
    size = from_bits(smaller(absolute_bits_of(number), _BITS_OF_4))
    square = size * size
    inner = np.float32(6.741801443019337e-11) * square + np.float32(-6.067951533788873e-09)
    inner = inner * square + np.float32(2.4411701557076846e-07)
    inner = inner * square + np.float32(-5.861148743572926e-06)
    inner = inner * square + np.float32(9.494568788833392e-05)
    inner = inner * square + np.float32(-0.001112888048827419)
    inner = inner * square + np.float32(0.009815907666309466)
    inner = inner * square + np.float32(-0.06632380865249239)
    inner = inner * square + np.float32(0.3988811253072455)
    return from_bits(larger(bits, _NOTHING)) - size * (_HALF - size * inner)


@njit(inline="always")
def _round(row: Any, per_level: Any, offset: Any, values: Any, token: Any) -> None:
    for channel in range(len(row)):
        # An offset that is no integer is added first: rounded itself, it would shift all states.
        values[token, channel] = _last_byte((row[channel] * per_level + offset) + _ROUNDING)


@njit(inline="always")
def _scale_above(lowest: Any, largest: Any, extreme: Any) -> Any:
    """Return NaN for a row with infinity or NaN, which may have lost its sign and so not be the largest."""
    if extreme >= INFINITE_BITS:
        return NAN
    return (from_bits(largest) - lowest) / _ONE_SIDED_LEVELS


@compiled(*(types.void(states, BY_CHANNEL, _VALUES, BY_TOKEN) for states in (FP32, BF16)))
def quantise(states: Any, factors: Any, values: Any, scales: Any) -> None:
    """Quantise states around zero, each channel multiplied by its factor.

    Semantics:
        state · factor = scale · (value - 128)
    """
    row = np.empty(states.shape[1], np.float32)
    for token in range(len(states)):
        largest = _NOTHING
        for channel in range(len(row)):
            number = as_fp32(states[token, channel]) * factors[channel]
            row[channel] = number
            largest = larger(largest, absolute_bits_of(number))
        scales[token] = scale = from_bits(largest) / _LEVELS
        _round(row, _ONE / scale, _ZERO_POINT, values, token)


@compiled(*(types.void(states, types.float32, _VALUES, BY_TOKEN) for states in (FP32, BF16)))
def quantise_above(states: Any, lowest: Any, values: Any, scales: Any) -> None:
    """Quantise states that are nowhere below `lowest`.

    Semantics:
        state = scale · value + lowest
    """
    row = np.empty(states.shape[1], np.float32)
    for token in range(len(states)):
        largest = extreme = _NOTHING
        for channel in range(len(row)):
            number = as_fp32(states[token, channel])
            row[channel] = number
            largest, extreme = larger(largest, bits_of(number)), larger(extreme, absolute_bits_of(number))
        scales[token] = scale = _scale_above(lowest, largest, extreme)
        _round(row, _ONE / scale, -lowest / scale, values, token)


@compiled(
    *(
        types.void(FP32, BY_TOKEN, BY_CHANNEL, inner, types.float32, _VALUES, BY_TOKEN)
        for inner in (types.none, FP32, BF16)
    )
)
def gelu_and_quantise_above(
    product: Any, token_scales: Any, bias: Any, inner: Any, lowest: Any, values: Any, scales: Any
) -> None:
    """Finish a product, and quantise its GELU as `quantise_above`.

    `inner`, if it is not None, is added in front of the GELU and overwritten with what that returns.
    """
    row = np.empty(len(bias), np.float32)
    for token in range(len(product)):
        largest = extreme = _NOTHING
        for channel in range(len(row)):
            before = product[token, channel] * token_scales[token] + bias[channel]
            if inner is not None:
                before += as_fp32(inner[token, channel])
            number = _gelu(before)
            row[channel] = number
            if inner is not None:
                inner[token, channel] = as_stored(number, inner[token, channel])
            largest, extreme = larger(largest, bits_of(number)), larger(extreme, absolute_bits_of(before))
        scales[token] = scale = _scale_above(lowest, largest, extreme)
        _round(row, _ONE / scale, -lowest / scale, values, token)


@compiled(
    *(
        types.void(FP32, BY_TOKEN, BY_CHANNEL, plus, outputs)
        for outputs in (FP32, BF16)
        for plus in (types.none, outputs)
    )
)
def rescale(product: Any, scales: Any, bias: Any, plus: Any, outputs: Any) -> None:
    """Multiply a product's tokens by their scales, add the bias, and `plus` if it is not None."""
    for token in range(len(product)):
        for channel in range(len(bias)):
            number = product[token, channel] * scales[token] + bias[channel]
            if plus is not None:
                number += as_fp32(plus[token, channel])
            outputs[token, channel] = as_stored(number, outputs[token, channel])

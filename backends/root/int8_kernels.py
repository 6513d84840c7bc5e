"""What stands around a product in int8, in one pass each: quantising, GELU, scales, bias and residual.

PyTorch needs six to ten passes for each, and on processors that multiply int8 fast these take longer than the products.
Numba compiles the loops for this machine's processor, once: the code is kept in its cache.

A row stays in the cache of its core between the pass that looks for its scale and the pass that rounds. Comparisons
are of bits as integers, because comparisons of floats, which have to think of NaN, do not become vectors. Bits of
absolute values are in the order of the values; those of infinity and NaN are the largest.

Shape:
    States are `[T, n]` in fp32, or in bf16 as its bits in int16; values `[T, n]` uint8; scales `[T]` in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_INT32, _INT16, _UINT8, _FLOAT = ir.IntType(32), ir.IntType(16), ir.IntType(8), ir.FloatType()
_FP32, _BF16, _VALUES = types.float32[:, ::1], types.int16[:, ::1], types.uint8[:, ::1]
_BY_TOKEN = _BY_CHANNEL = types.float32[::1]
# A float of this size has no bits left for fractions: adding it rounds, and its last byte is the integer.
_ROUNDING = np.float32(1.5 * 2**23)
_LEVELS = np.float32(127)
_ZERO_POINT = np.float32(128)
# Half a level more than this would be 255, beyond which an unsigned byte begins again at 0.
_ONE_SIDED_LEVELS = np.float32(254)
_ONE, _HALF, _NAN = np.float32(1), np.float32(0.5), np.float32(np.nan)
_NOTHING = np.int32(0)
_BITS_OF_4, _BITS_OF_INFINITY = np.int32(0x40800000), np.int32(0x7F800000)


def _compiled(*signatures: Any) -> Callable[[Any], Any]:
    """Compile for the signatures, from the cache where it may be written. The interpreter's lock is not held."""

    def decorate(function: Any) -> Any:
        options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
        try:
            return njit(list(signatures), cache=True, **options)(function)
        except (RuntimeError, OSError):  # no folder for a cache, or no room in it
            return njit(list(signatures), **options)(function)

    return decorate


@intrinsic
def _bits(typing: Any, number: Any) -> Any:
    return types.int32(types.float32), lambda context, build, signature, args: build.bitcast(args[0], _INT32)


@intrinsic
def _absolute_bits(typing: Any, number: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        return build.and_(build.bitcast(args[0], _INT32), ir.Constant(_INT32, 0x7FFFFFFF))

    return types.int32(types.float32), generate


@intrinsic
def _number(typing: Any, bits: Any) -> Any:
    return types.float32(types.int32), lambda context, build, signature, args: build.bitcast(args[0], _FLOAT)


@intrinsic
def _last_byte(typing: Any, number: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        return build.trunc(build.bitcast(args[0], _INT32), _UINT8)

    return types.uint8(types.float32), generate


@intrinsic
def _larger(typing: Any, left: Any, right: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        return build.select(build.icmp_signed(">", *args), *args)

    return types.int32(types.int32, types.int32), generate


@intrinsic
def _smaller(typing: Any, left: Any, right: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        return build.select(build.icmp_signed("<", *args), *args)

    return types.int32(types.int32, types.int32), generate


@intrinsic
def _fp32(typing: Any, stored: Any) -> Any:
    """Read fp32 as it is, bf16 from its bits."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        if signature.args[0] == types.float32:
            return args[0]
        return build.bitcast(build.shl(build.zext(args[0], _INT32), ir.Constant(_INT32, 16)), _FLOAT)

    return types.float32(stored), generate


@intrinsic
def _stored(typing: Any, number: Any, like: Any) -> Any:
    """Store as `like` is stored; bf16 rounds to the nearest, and of two to the even one. NaN from bf16 stays NaN."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        if signature.return_type == types.float32:
            return args[0]
        bits, sixteen = build.bitcast(args[0], _INT32), ir.Constant(_INT32, 16)
        odd = build.and_(build.lshr(bits, sixteen), ir.Constant(_INT32, 1))
        rounded = build.add(build.add(bits, ir.Constant(_INT32, 0x7FFF)), odd)
        return build.trunc(build.lshr(rounded, sixteen), _INT16)

    return like(types.float32, like), generate


@njit(inline="always")
def _gelu(number: Any) -> Any:
    """Compute GELU by a polynomial in number²; it is off by less than 0.0003 anywhere.

    Semantics:
        gelu(x) = max(x, 0) - a · (1/2 - a · p(a²)) with a = |x|, where the second term vanishes from 4 on.
    """
    bits = _bits(number)
    size = _number(_smaller(_absolute_bits(number), _BITS_OF_4))
    square = size * size
    inner = np.float32(6.741801443019337e-11) * square + np.float32(-6.067951533788873e-09)
    inner = inner * square + np.float32(2.4411701557076846e-07)
    inner = inner * square + np.float32(-5.861148743572926e-06)
    inner = inner * square + np.float32(9.494568788833392e-05)
    inner = inner * square + np.float32(-0.001112888048827419)
    inner = inner * square + np.float32(0.009815907666309466)
    inner = inner * square + np.float32(-0.06632380865249239)
    inner = inner * square + np.float32(0.3988811253072455)
    return _number(_larger(bits, _NOTHING)) - size * (_HALF - size * inner)


@njit(inline="always")
def _round(row: Any, per_level: Any, offset: Any, values: Any, token: Any) -> None:
    for channel in range(len(row)):
        # An offset that is no integer is added first: rounded itself, it would shift all states.
        values[token, channel] = _last_byte((row[channel] * per_level + offset) + _ROUNDING)


@njit(inline="always")
def _scale_above(lowest: Any, largest: Any, extreme: Any) -> Any:
    """Return NaN for a row with infinity or NaN, which may have lost its sign and so not be the largest."""
    if extreme >= _BITS_OF_INFINITY:
        return _NAN
    return (_number(largest) - lowest) / _ONE_SIDED_LEVELS


@_compiled(*(types.void(states, _BY_CHANNEL, _VALUES, _BY_TOKEN) for states in (_FP32, _BF16)))
def quantise(states: Any, factors: Any, values: Any, scales: Any) -> None:
    """Quantise states around zero, each channel multiplied by its factor.

    Semantics:
        state · factor = scale · (value - 128)
    """
    row = np.empty(states.shape[1], np.float32)
    for token in range(len(states)):
        largest = _NOTHING
        for channel in range(len(row)):
            number = _fp32(states[token, channel]) * factors[channel]
            row[channel] = number
            largest = _larger(largest, _absolute_bits(number))
        scales[token] = scale = _number(largest) / _LEVELS
        _round(row, _ONE / scale, _ZERO_POINT, values, token)


@_compiled(*(types.void(states, types.float32, _VALUES, _BY_TOKEN) for states in (_FP32, _BF16)))
def quantise_above(states: Any, lowest: Any, values: Any, scales: Any) -> None:
    """Quantise states that are nowhere below `lowest`.

    Semantics:
        state = scale · value + lowest
    """
    row = np.empty(states.shape[1], np.float32)
    for token in range(len(states)):
        largest = extreme = _NOTHING
        for channel in range(len(row)):
            number = _fp32(states[token, channel])
            row[channel] = number
            largest, extreme = _larger(largest, _bits(number)), _larger(extreme, _absolute_bits(number))
        scales[token] = scale = _scale_above(lowest, largest, extreme)
        _round(row, _ONE / scale, -lowest / scale, values, token)


@_compiled(
    *(
        types.void(_FP32, _BY_TOKEN, _BY_CHANNEL, inner, types.float32, _VALUES, _BY_TOKEN)
        for inner in (types.none, _FP32, _BF16)
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
                before += _fp32(inner[token, channel])
            number = _gelu(before)
            row[channel] = number
            if inner is not None:
                inner[token, channel] = _stored(number, inner[token, channel])
            largest, extreme = _larger(largest, _bits(number)), _larger(extreme, _absolute_bits(before))
        scales[token] = scale = _scale_above(lowest, largest, extreme)
        _round(row, _ONE / scale, -lowest / scale, values, token)


@_compiled(
    *(
        types.void(_FP32, _BY_TOKEN, _BY_CHANNEL, plus, outputs)
        for outputs in (_FP32, _BF16)
        for plus in (types.none, outputs)
    )
)
def rescale(product: Any, scales: Any, bias: Any, plus: Any, outputs: Any) -> None:
    """Multiply a product's tokens by their scales, add the bias, and `plus` if it is not None."""
    for token in range(len(product)):
        for channel in range(len(bias)):
            number = product[token, channel] * scales[token] + bias[channel]
            if plus is not None:
                number += _fp32(plus[token, channel])
            outputs[token, channel] = _stored(number, outputs[token, channel])

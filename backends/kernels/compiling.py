"""Loops that Numba compiles for this machine's processor, once: the code is kept in its cache.

The code of `backends/root`, `adapters` and `engine` calls such loops where operations of PyTorch would pass memory
several times, or gather and scatter what lies in place. They run on the CPU and leave the interpreter's lock.

Comparisons are of bits as integers, because comparisons of floats, which have to think of NaN, do not become vectors.
Bits of absolute values are in the order of the values; those of infinity and NaN are the largest.

Shape:
    States are `[T, n]` in fp32, or in bf16 as its bits in int16.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

LOGGER = logging.getLogger(__name__)
States = NDArray[np.float32 | np.int16]
FP32, BF16 = types.float32[:, ::1], types.int16[:, ::1]
FLAT_FP32, FLAT_BF16 = types.float32[::1], types.int16[::1]
BY_TOKEN = BY_CHANNEL = types.float32[::1]
COUNT, COUNTS = types.int64, types.int64[::1]
INFINITE_BITS = np.int32(0x7F800000)
NAN = np.float32(np.nan)
_INT32, _INT16, _FLOAT = ir.IntType(32), ir.IntType(16), ir.FloatType()


def _checksum_of_room() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in files), digest_size=4).hexdigest()


_CHECKSUM = _checksum_of_room()


def compiled(*signatures: Any, reorders_sums: bool = False) -> Callable[[Any], Any]:
    """Compile for the signatures, from the cache where it may be written. The interpreter's lock is not held.

    Without signatures nothing is compiled, and a call raises RuntimeError.
    """

    def decorate(function: Any) -> Any:
        if not signatures:
            return partial(_not_compiled, function.__name__)
        # Numba looks only at the file of the function itself, but code of this room's other files is compiled into it.
        function.__qualname__ += f"_{_CHECKSUM}"
        fastmath = {"contract", "reassoc"} if reorders_sums else {"contract"}
        options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
        try:
            return njit(list(signatures), cache=True, **options)(function)
        except Exception as error:  # no cache, no room in it, or damaged pickles, which raise errors of any type
            _warn_of_cache(type(error).__name__)
            return njit(list(signatures), **options)(function)

    return decorate


def _not_compiled(name: str, *_: Any) -> None:
    raise RuntimeError(f"{name} is not compiled for this processor")


@cache
def _warn_of_cache(error: str) -> None:
    """Log it once, not for each loop."""
    LOGGER.warning(
        "loops are compiled anew at each start, because their cache cannot be used (%s); see that __pycache__ beside "
        "their source or NUMBA_CACHE_DIR can be written, and remove what lies there",
        error,
    )


def memory_of(states: Tensor) -> States:
    """Return the memory of states; bf16 as its bits."""
    if states.dtype == torch.bfloat16:
        states = states.view(torch.int16)
    array: States = states.detach().numpy()
    return array


def flat_memory_of(states: Tensor) -> States:
    """Return the memory from the first to the last state of `[T, n]`, and what lies between its rows, in one line."""
    tokens, width = states.shape
    return memory_of(states.as_strided(((tokens - 1) * states.stride(0) + width,), (1,)))


@intrinsic
def bits_of(typing: Any, number: Any) -> Any:
    return types.int32(types.float32), lambda context, build, signature, args: build.bitcast(args[0], _INT32)


@intrinsic
def absolute_bits_of(typing: Any, number: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        return build.and_(build.bitcast(args[0], _INT32), ir.Constant(_INT32, 0x7FFFFFFF))

    return types.int32(types.float32), generate


@intrinsic
def from_bits(typing: Any, bits: Any) -> Any:
    return types.float32(types.int32), lambda context, build, signature, args: build.bitcast(args[0], _FLOAT)


@intrinsic
def larger(typing: Any, left: Any, right: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        return build.select(build.icmp_signed(">", *args), *args)

    return types.int32(types.int32, types.int32), generate


@intrinsic
def smaller(typing: Any, left: Any, right: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        return build.select(build.icmp_signed("<", *args), *args)

    return types.int32(types.int32, types.int32), generate


@intrinsic
def as_fp32(typing: Any, stored: Any) -> Any:
    """Read fp32 as it is, bf16 from its bits."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        if signature.args[0] == types.float32:
            return args[0]
        return build.bitcast(build.shl(build.zext(args[0], _INT32), ir.Constant(_INT32, 16)), _FLOAT)

    return types.float32(stored), generate


@intrinsic
def as_stored(typing: Any, number: Any, like: Any) -> Any:
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
def read(states: Any, factor: Any, line: Any) -> None:
    """Read a token's states, multiplied by the factor, into a line of fp32."""
    for channel in range(len(states)):
        line[channel] = as_fp32(states[channel]) * factor


@compiled(types.float32(FLAT_FP32), reorders_sums=True)
def total_of(line: Any) -> Any:
    # A loop over the numbers themselves does not become vectors.
    total = np.float32(0)
    for index in range(len(line)):
        total += line[index]
    return total

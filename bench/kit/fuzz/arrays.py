"""Bad tensors made of good ones: other shapes, types, memory and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bench.kit.fuzz.draw import FLOATS, INTEGERS, Draw

Array = npt.NDArray[Any]
_TYPES = ("?", "u1", "i1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">i8", ">f2", "c8", "O", "S3", "U2", "M8[s]")
_WIDEST_PART = 3


def bad_array(draw: Draw, good: Array) -> Array:
    """An array like the good one but for a little or for much."""
    match draw.randrange(8):
        case 0 | 1 | 2:
            return with_bad_values(draw, good)
        case 3:
            return _of_damaged_bytes(draw, good)
        case 4 | 5:
            return _reshaped(draw, good)
        case 6:
            return _of_another_type(draw, good)
    return _of_other_rows(draw, good)


def with_bad_values(draw: Draw, good: Array) -> Array:
    """The same shape and type, with some special values."""
    bad = good.copy()
    flat = bad.reshape(-1)
    if not flat.size:
        return bad
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(flat.size)
        if good.dtype.kind == "f":
            with np.errstate(over="ignore"):
                flat[at : at + draw.choice((1, 1, 7))] = draw.choice(FLOATS)
        elif good.dtype.kind in "iu":
            limits = np.iinfo(good.dtype)
            flat[at] = min(max(draw.choice((draw.choice(INTEGERS), draw.integer())), limits.min), limits.max)
        else:
            flat[at] = draw.text()
    return bad


def _of_damaged_bytes(draw: Draw, good: Array) -> Array:
    if good.dtype.kind == "O":
        return with_bad_values(draw, good)
    content = draw.damaged(good.tobytes())
    size = good.dtype.itemsize * (good.shape[-1] if good.ndim > 1 and draw.happens(0.7) else 1)
    whole = content[: len(content) // size * size] if size else b""
    flat = np.frombuffer(whole, good.dtype)
    return flat.reshape(-1, *good.shape[1:]) if good.ndim == 2 and flat.size % (good.shape[-1] or 1) == 0 else flat


def _reshaped(draw: Draw, good: Array) -> Array:
    match draw.randrange(6):
        case 0:
            return good.reshape(-1)
        case 1:
            return good[None]
        case 2:
            return good.T
        case 3:
            return np.empty(tuple(draw.randrange(_WIDEST_PART) for _ in range(draw.randrange(5))), good.dtype)
        case 4:
            return good[..., : draw.randint(0, good.shape[-1])] if good.ndim else good
    return np.concatenate([good, good[..., :1]], axis=-1) if good.ndim else good


def _of_another_type(draw: Draw, good: Array) -> Array:
    kind = np.dtype(draw.choice(_TYPES))
    with np.errstate(all="ignore"):
        try:
            return good.astype(kind)
        except (TypeError, ValueError, OverflowError):
            return np.zeros(good.shape, kind)


def _of_other_rows(draw: Draw, good: Array) -> Array:
    if not good.ndim or not len(good):
        return good
    match draw.randrange(5):
        case 0:
            return good[:0]
        case 1:
            return good[: draw.randint(0, len(good))]
        case 2:
            return np.concatenate([good, good])
        case 3:
            return good[::-1]
    return np.repeat(good, 2, axis=0)[:, ...]

"""Bad safetensors files: other headers over the same bytes, special values, other shapes and types."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from bench.kit.fuzz.draw import FLOATS, Draw
from bench.kit.fuzz.json_values import bad_value

_HEADER = struct.Struct("<Q")
_TYPES = ("F16", "F32", "F64", "BF16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "U16", "C64", "F4", "X")


def bad_tensors(draw: Draw, good: bytes) -> bytes:
    """Damage a safetensors file in its numbers, its header, or anywhere."""
    (size,) = _HEADER.unpack_from(good)
    header, data = json.loads(good[_HEADER.size : _HEADER.size + size]), bytearray(good[_HEADER.size + size :])
    match draw.randrange(8):
        case 0 | 1 | 2:
            _put_special_values(draw, header, data)
        case 3:
            header = bad_value(draw, header)
        case 4:
            _rename(draw, header)
        case 5 | 6:
            _reshape(draw, header)
        case 7:
            return draw.damaged(good)
    return with_header(header, bytes(data))


def with_header(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return _HEADER.pack(len(text)) + text + data


def _tensors(header: dict[str, Any]) -> list[str]:
    return [name for name in header if name != "__metadata__"]


def _put_special_values(draw: Draw, header: dict[str, Any], data: bytearray) -> None:
    described = header[draw.choice(_tensors(header))]
    start, end = described["data_offsets"]
    kind = {"F16": np.float16, "F32": np.float32}.get(described["dtype"])
    values = np.frombuffer(
        data, np.uint16 if kind is None else kind, (end - start) // (4 if kind is np.float32 else 2), start
    )
    if not values.size:
        return
    at = draw.randrange(values.size)
    many = slice(at, at + draw.choice((1, 1, 5, values.size)))
    with np.errstate(over="ignore"):
        if kind is None:  # bf16 is the upper half of fp32
            values[many] = np.array([draw.choice(FLOATS)], np.float32).view(np.uint16)[1]
        else:
            values[many] = draw.choice(FLOATS)


def _rename(draw: Draw, header: dict[str, Any]) -> None:
    names = _tensors(header)
    first = draw.choice(names)
    if draw.happens(0.5):
        second = draw.choice(names)
        header[first], header[second] = header[second], header[first]
    else:
        header[draw.text(names)] = header.pop(first)


def _reshape(draw: Draw, header: dict[str, Any]) -> None:
    """Describe the same bytes by another shape or type."""
    described = header[draw.choice(_tensors(header))]
    shape = described["shape"]
    match draw.randrange(6):
        case 0:
            described["shape"] = shape[::-1]
        case 1:
            described["shape"] = [int(np.prod(shape))]
        case 2:
            described["shape"] = [1, *shape]
        case 3:
            described["shape"] = [*shape[:-1], shape[-1] // 2, 2] if shape else [1]
        case 4 if described["dtype"] in ("F16", "BF16"):
            described["dtype"] = "BF16" if described["dtype"] == "F16" else "F16"
        case _:
            described["dtype"] = draw.choice(_TYPES)

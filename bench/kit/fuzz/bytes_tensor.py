"""Tensors of datatype BYTES as they travel: each element after its length, which may be wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bench.kit.fuzz.draw import Draw

_LENGTHS = (0, 1, 3, 255, 65_536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)


def element(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<I", len(value) if length is None else length % (1 << 32)) + value


def elements(draw: Draw, values: Sequence[bytes], is_right: bool = False) -> bytes:
    """Encode values, unless `is_right` with one fault.

    The last element may promise more than follows: Triton 24.10 does not look at that before it batches requests.
    """
    right = [element(value) for value in values]
    if is_right or not right:
        return b"".join(right)
    at, last = draw.randrange(len(right)), values[-1]
    match draw.randrange(8):
        case 0:
            right[-1] = element(last, len(last) + draw.choice((1, 2, 100, 1 << 20)))
        case 1:
            right[-1] = element(last, draw.choice(_LENGTHS))
        case 2:
            right[-1] = element(last)[: draw.randint(0, 3)]
        case 3:
            right[at] = element(values[at], draw.choice((*_LENGTHS, len(values[at]) - 1)))
        case 4:
            right.append(draw.randbytes(draw.choice((1, 2, 3, 4, 5, 17))))
        case 5:
            right.append(element(values[at]))
        case 6:
            del right[at]
        case _:
            whole = b"".join(right)
            return whole[: draw.randrange(len(whole))]
    return b"".join(right)

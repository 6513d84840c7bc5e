"""Damage to bytes: flipped bits, cuts, doubled and foreign pieces."""

from __future__ import annotations

import random


def damaged(rng: random.Random, content: bytes, times: int = 1) -> bytes:
    for _ in range(times):
        content = _damaged_once(rng, content)
    return content


def _damaged_once(rng: random.Random, content: bytes) -> bytes:
    at, to = (rng.randint(0, len(content)) for _ in range(2))
    match rng.randrange(6):
        case 0:
            return content[:at]
        case 1:
            return content[at:]
        case 2:
            return content[: min(at, to)] + content[max(at, to) :]
        case 3:
            return content[:at] + rng.randbytes(rng.choice((1, 2, 4, 9, 40))) + content[at:]
        case 4:
            return content[:at] + content[min(at, to) : max(at, to)] + content[at:]
        case _:
            return flipped(rng, content)


def flipped(rng: random.Random, content: bytes, most: int = 8) -> bytes:
    """Flip some bits."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, most) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)

"""A process that a test kills: `python overlay_append.py TABLE_FOLDER SEAT`; learns fragments without end."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from backends.plot.arrays import Float16Array, Keys
from backends.plot.overlay import Overlay
from backends.plot.overlay_log import FragmentLayout, LogOrigin
from backends.plot.overlay_pool import OverlayPool

ORIGIN = LogOrigin("a" * 32, FragmentLayout(3, 96))


def keys_from(start: int, count: int) -> Keys:
    return np.arange(start, start + count, dtype=np.uint64) << np.uint64(21)


def vectors_of(keys: Keys) -> Float16Array:
    """Vectors that spell their key, so that a wrong one shows."""
    places = np.arange(ORIGIN.layout.width, dtype=np.uint64)
    return ((keys[:, None] >> np.uint64(21)) * (places + np.uint64(7)) % np.uint64(1009)).astype(np.float16)


def append(table_folder: Path, seat: int, pool_bytes: int) -> None:
    overlay = Overlay(f"seat {seat}", OverlayPool(pool_bytes, ORIGIN.layout), table_folder, ORIGIN, seat)
    start = 1_000_000 * (seat + 1)
    while True:
        keys = keys_from(start, 50)
        overlay.add(keys, vectors_of(keys))
        overlay.sync()
        start += 50
        sys.stdout.write(f"{start}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    append(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

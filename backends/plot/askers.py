"""Who asked for a fragment: one tenant, by a number, or several."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from backends.plot.arrays import Float16Array, Found, Keys, Rows

Askers = npt.NDArray[np.uint32]
SEVERAL = 0


class Fetched(NamedTuple):
    """Which of some fragments were there, their vectors, and who had asked for them until then.

    Shape: vectors [found, n * hidden], found [K], askers [found]
    """

    vectors: Float16Array
    found: Found
    askers: Askers


def asker_number(tenant: str) -> int:
    """Two tenants hardly ever have the same number; then they count as one."""
    return zlib.crc32(tenant.encode()) or 1


def asked_by(keys: Keys | Rows, askers: Askers) -> tuple[Rows, Askers]:
    """Return where each distinct key is first, in the order of the keys, and who asked for it.

    Shape: keys, askers [K] -> [D], [D]
    """
    order = np.argsort(keys, kind="stable")
    starts = np.unique(keys[order], return_index=True)[1]
    if not starts.size:
        return order, askers
    lowest, highest = np.minimum.reduceat(askers[order], starts), np.maximum.reduceat(askers[order], starts)
    return order[starts], np.where(lowest == highest, lowest, np.uint32(SEVERAL))

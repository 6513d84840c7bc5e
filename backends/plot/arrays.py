"""The array types of this room, by what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[Any]
"""Keys, one per fragment: `uint64` for up to three ids, `keys.WIDE_KEY` for five."""
Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Found = npt.NDArray[np.bool_]
Levels = npt.NDArray[np.uint8]
Float16Array = npt.NDArray[np.float16]

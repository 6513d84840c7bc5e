"""The array types of this room, by what they hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Found = npt.NDArray[np.bool_]
Levels = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]

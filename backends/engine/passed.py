"""What becomes of a row in a stage that is not the last, where each stage is a process."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from backends.stage_wire import Mates


class Passed(NamedTuple):
    """The row goes on in the next stage.

    Shape:
        states: `[L, H]`, in fp32.
    """

    states: npt.NDArray[np.float32]
    mates: Mates

"""First come, first served."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends.scheduling.open_batch import OpenBatch
from backends.scheduling.order import FairOrder
from backends.scheduling.policy import Capacity
from backends.scheduling.waiting_room import WaitingRoom


class FirstComeFirstServed:
    """The oldest job's root runs, with as many of that root's jobs, oldest first, as fit.

    Nobody of the same root is overtaken, and no root: whoever waits is the oldest some day.
    """

    order = FairOrder()

    def select(self, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity) -> list[int]:
        batch = OpenBatch(waiting, capacity)
        batch.add_until_full(np.flatnonzero(waiting.root == waiting.root[:1]))
        return batch.places

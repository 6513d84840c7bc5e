"""How far rows fill batches, and what batches take beside the work of their rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.scheduling.cost_model import CostModel
from backends.scheduling.order import Load
from backends.scheduling.settings import Capacity
from backends.scheduling.waiting_room import Float64, WaitingRoom

_FULL_BATCHES = 16
"""How full full batches are is averaged over about so many."""


class BatchFill:
    """What loads come to in batches of a capacity. Told of each row that comes to wait or waits no longer."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._fullness = 1.0
        """Part of the capacity that a batch holds where more is offered; a policy may not use all of it."""
        self._adapters: Counter[int] = Counter()
        """Rows that wait, by hPLM version."""

    def enter(self, hplm_key: int) -> None:
        self._adapters[hplm_key] += 1

    def leave(self, hplm_key: int) -> None:
        self._adapters[hplm_key] -= 1
        if not self._adapters[hplm_key]:
            del self._adapters[hplm_key]

    def note_fullness(self, waiting: WaitingRoom[Any], indices: Sequence[int]) -> None:
        """Learn from a batch how much of the capacity the policy uses, where its stack's rows are more than that."""
        is_of_stack = waiting.root == waiting.root[indices[0]]
        offered = self._filled(int(np.count_nonzero(is_of_stack)), int(waiting.num_tokens @ is_of_stack))
        used = self._filled(len(indices), int(waiting.num_tokens[list(indices)].sum()))
        if offered > 1.0 or used > self._fullness:
            self._fullness += (min(1.0, used) - self._fullness) / _FULL_BATCHES

    def batches(self, load: Load) -> float:
        """How many batches a load fills."""
        return self._filled(load.rows, load.tokens) / self._fullness

    def batches_us(self, until: Load, num_stacks: int, behind_us: float, model: CostModel) -> float:
        """What the batches take that hold a load, filled up with rows that wait behind it."""
        filled = self.batches(until)
        num_batches = max(math.ceil(filled), num_stacks)
        room_us = until.work_us * (num_batches - filled) / filled
        overhead_us = num_batches * self._overhead_us(until.rows / num_batches, model)
        return until.work_us + min(behind_us, room_us) + overhead_us

    def overheads_us(self, rows: Float64, tokens: Float64, model: CostModel) -> Float64:
        """What batches take beside the work of their rows, until so many rows and tokens are done; ascending sums."""
        filled = np.maximum(rows / self._capacity.max_rows, tokens / self._capacity.max_tokens) / self._fullness
        num_batches: Float64 = np.ceil(filled)
        if not len(rows):
            return num_batches
        overheads_us: Float64 = num_batches * self._overhead_us(float(rows[-1] / num_batches[-1]), model)
        return overheads_us

    def row_us(self, num_tokens: int, work_us: float, model: CostModel) -> float:
        """What a row costs: its work, and its part of what a full batch takes anyway."""
        filled = self._filled(1, num_tokens)
        return work_us + filled * self._overhead_us(1 / filled, model)

    def _filled(self, rows: float, tokens: float) -> float:
        """Part of the capacity of one batch."""
        return max(rows / self._capacity.max_rows, tokens / self._capacity.max_tokens)

    def _overhead_us(self, rows: float, model: CostModel) -> float:
        """What a batch takes beside the work of its rows."""
        return model.constant_us + model.per_adapter_us * self._distinct(rows)

    def _distinct(self, rows: float) -> float:
        """Different hPLMs that so many rows are of, if all that wait are equally likely."""
        kinds = len(self._adapters)
        return max(1.0, kinds * (1.0 - math.exp(-rows / kinds))) if kinds else 1.0

"""A request of a simulated load, as policies and admission see one, and the stream of them."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from backends.stack_key import StackKey
from builder.placement.simulated_load import SimulatedLoad

ROOT = StackKey("simulated")
_BLOCK = 65_536


@dataclass(eq=False, slots=True)
class SimulatedJob:
    """`place` is its row of the load; it arrives where the upper half queues it, as a job of the engine does."""

    place: int
    arrived_us: int
    hplm_key: int
    tenant: str
    num_tokens: int
    deadline_us: int | None
    root: StackKey = ROOT
    depth: float = 1.0
    least_depth: float = 1.0
    most_depth: float = 1.0

    def settle(self) -> bool:
        """Simulated hPLMs have no ladders."""
        return False

    def unsettle(self, depth: float) -> None:
        pass

    def is_late(self, now_us: int) -> bool:
        return self.deadline_us is not None and self.deadline_us <= now_us


class Inbox:
    """Who is still to come. Jobs are made in blocks: few at a time are in memory, and none is made by itself."""

    def __init__(self, load: SimulatedLoad) -> None:
        self._load = load
        self._made = 0
        self._jobs: list[SimulatedJob] = []
        self._times_us: list[int] = []
        self._taken = 0
        """Of the block."""
        self.next_us: float = math.inf
        self._tenants = {key: f"tenant{key}" for key in np.unique(load.tenants).tolist()}
        self._make_block()

    def take_until(self, until_us: int) -> list[SimulatedJob]:
        """Those that come by then, in order."""
        taken: list[SimulatedJob] = []
        while self.next_us <= until_us:
            end = bisect_right(self._times_us, until_us, self._taken)
            taken += self._jobs[self._taken : end]
            self._taken = end
            if end == len(self._jobs):
                self._make_block()
            else:
                self.next_us = self._times_us[end]
        return taken

    def _make_block(self) -> None:
        load, rows = self._load, slice(self._made, self._made + _BLOCK)
        self._times_us = load.queued_us[rows].tolist()
        keys = load.tenants[rows].tolist()
        tenants = map(self._tenants.__getitem__, keys)
        deadlines_us = repeat(None) if load.deadlines_us is None else load.deadlines_us[rows].tolist()
        places = range(rows.start, len(load))
        columns = (self._times_us, keys, tenants, load.tokens[rows].tolist(), deadlines_us)
        self._jobs = list(map(SimulatedJob, places, *columns))
        self._made += len(self._jobs)
        self._taken = 0
        self.next_us = self._times_us[0] if self._times_us else math.inf

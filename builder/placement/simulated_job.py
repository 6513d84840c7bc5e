"""A request of a simulated load, as policies and admission see one, and the stream of them."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.stack_key import FULL, StackKey
from builder.placement.simulated_load import SimulatedLoad

ROOT = StackKey("simulated")
_BLOCK = 65_536


class Depths(NamedTuple):
    """Shares of the upper layers that a row is likely to pass, has to pass, and may pass; as of the engine's jobs.

    `exit` is the share after which it may leave; it has to pass more where it may not settle.
    """

    likely: float = 1.0
    least: float = 1.0
    most: float = 1.0
    exit: float = 1.0


@dataclass(eq=False, slots=True)
class SimulatedJob:
    """`place` is its row of the load; it arrives where the upper half queues it, as a job of the engine does.

    `leaves` is known once it runs: whether it is sure enough at its exit. The depths are those of the engine's jobs;
    where `root` is a stack of students, `depth` is chosen once it runs.
    """

    place: int
    arrived_us: int
    hplm_key: int
    tenant: str
    num_tokens: int
    deadline_us: int | None
    leaves: bool = False
    depth: float = 1.0
    least_depth: float = 1.0
    most_depth: float = 1.0
    exit_depth: float = 1.0
    root: StackKey = ROOT
    settles: bool = False

    @property
    def kept(self) -> float:
        """Share of its tokens behind its exit: no words are pruned here."""
        return 1.0

    @property
    def passed(self) -> float:
        """Share of the layers that it passes when it runs."""
        if self.root.level != FULL:
            return self.depth
        return self.exit_depth if self.leaves or self.settles else 1.0

    @property
    def may_settle(self) -> bool:
        """Whether the answer of its exit may be sent, however sure that is."""
        return self.least_depth == self.exit_depth < 1.0

    def settle(self) -> bool:
        """Take the answer of the exit, if that may be."""
        if self.settles or not self.may_settle:
            return False
        self.depth, self.settles = self.least_depth, True
        return True

    def unsettle(self, depth: float) -> None:
        """Go on as before, when the row was likely to pass this share of the layers."""
        self.depth, self.settles = depth, False

    def is_late(self, now_us: int) -> bool:
        return self.deadline_us is not None and self.deadline_us <= now_us


class Inbox:
    """Who is still to come. Jobs are made in blocks: few at a time are in memory, and none is made by itself.

    Args:
        load: The requests.
        leaving: Which of them leave early.
        depths: Of each.
        stack: Where each runs.
    """

    def __init__(
        self, load: SimulatedLoad, leaving: NDArray[np.bool_], depths: Depths = Depths(), stack: StackKey = ROOT
    ) -> None:
        self._load = load
        self._leaving = leaving
        self._same_of_all = *map(repeat, depths), repeat(stack)
        self._made = 0
        self._jobs: list[SimulatedJob] = []
        self._times_us: list[int] = []
        self._taken = 0
        """Jobs taken of the block."""
        self.next_us: float = math.inf
        self._tenants = {key: f"tenant{key}" for key in np.unique(load.tenants).tolist()}
        self._make_block()

    def take_until(self, until_us: int) -> list[SimulatedJob]:
        """Take those that come by then, in order."""
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
        leaving = self._leaving[rows].tolist()
        columns = (self._times_us, keys, tenants, load.tokens[rows].tolist(), deadlines_us, leaving, *self._same_of_all)
        self._jobs = list(map(SimulatedJob, places, *columns))
        self._made += len(self._jobs)
        self._taken = 0
        self.next_us = self._times_us[0] if self._times_us else math.inf

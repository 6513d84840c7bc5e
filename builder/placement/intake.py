"""Who is still to come to a simulated server: a whole load, or rows that are added while it runs."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import attrgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backends.scheduling.wait_forecast import Told
from backends.stack_key import StackKey
from builder.placement.simulated_job import ROOT, Depths, SimulatedJob
from builder.placement.simulated_load import SimulatedLoad

_BLOCK = 65_536
_ARRIVAL = attrgetter("arrived_us")


class Intake(Protocol):
    """What stands before the engine. Rows come at the times that they carry, in their order.

    Attributes:
        next_us: Nothing comes, and nothing happens here, before it; infinite where nothing is known to come.
        forecasts: Whether rows are rejected here by the wait forecast, which the engine else does itself.
    """

    forecasts: bool

    @property
    def next_us(self) -> float: ...

    def next_beyond_us(self, rows: int, tokens: int) -> float:
        """Return when a row comes that is not among the next ones of so many rows and tokens, or at times before."""
        ...

    def __len__(self) -> int: ...

    def add(self, job: SimulatedJob) -> None: ...

    def take_until(self, until_us: int) -> list[SimulatedJob]:
        """Take rows that come by then, in order; where rows are rejected by forecast, those of the next moment only."""
        ...

    def left(self) -> Sequence[SimulatedJob]:
        """Return the rows that have not come yet."""
        ...

    def hear(self, told: Told) -> None:
        """Take what the engine forecasts."""
        ...


class _Unforecast:
    """An intake that rejects nothing."""

    forecasts = False
    next_us: float

    def next_beyond_us(self, rows: int, tokens: int) -> float:
        return self.next_us

    def hear(self, told: Told) -> None:
        pass


class WholeIntake(_Unforecast):
    """A load that is known from the start. Jobs are made in blocks: few at a time are in memory.

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
        self._tokens_before: list[int] = []
        """Of each job made, and at last of the first one that is not."""
        self._taken = 0
        """Jobs taken of the block."""
        self.next_us: float = math.inf
        self._tenants = {key: load.tenant_name(key) for key in np.unique(load.tenants).tolist()}
        self._make_block()

    def __len__(self) -> int:
        return len(self._load) - self._made + len(self._jobs) - self._taken

    def add(self, job: SimulatedJob) -> None:
        raise TypeError("this load is whole")

    def left(self) -> Sequence[SimulatedJob]:
        return self._jobs[self._taken :]

    def take_until(self, until_us: int) -> list[SimulatedJob]:
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

    def next_beyond_us(self, rows: int, tokens: int) -> float:
        if not self._times_us:
            return math.inf
        first, before = self._taken, self._tokens_before
        most = before[first] + tokens
        # The row behind so many rows, but none of the next block, and none behind so many tokens.
        beyond = min(first + rows, len(self._jobs) - 1)
        if before[beyond + 1] > most:
            beyond = bisect_right(before, most, first + 1, beyond + 1) - 1
        return self._times_us[beyond]

    def take_block(self) -> list[SimulatedJob]:
        """Take all that is made, and make the next ones; none at the end."""
        taken = self._jobs[self._taken :]
        self._make_block()
        return taken

    def _make_block(self) -> None:
        load, rows = self._load, slice(self._made, self._made + _BLOCK)
        self._times_us = load.queued_us[rows].tolist()
        keys = load.tenants[rows].tolist()
        tenants = map(self._tenants.__getitem__, keys)
        deadlines_us = repeat(None) if load.deadlines_us is None else load.deadlines_us[rows].tolist()
        places = range(rows.start, len(load))
        leaving = self._leaving[rows].tolist()
        tokens = load.tokens[rows].tolist()
        self._tokens_before = [*accumulate(tokens, initial=0)]
        columns = (self._times_us, keys, tenants, tokens, deadlines_us, leaving, *self._same_of_all)
        self._jobs = list(map(SimulatedJob, places, *columns))
        self._made += len(self._jobs)
        self._taken = 0
        self.next_us = self._times_us[0] if self._times_us else math.inf


class OpenIntake(_Unforecast):
    """Rows that are added one by one, of any times to come."""

    def __init__(self) -> None:
        self._jobs: deque[SimulatedJob] = deque()
        self.next_us: float = math.inf

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: SimulatedJob) -> None:
        """Rows of one moment come in the order in which they were added."""
        if self._jobs and job.arrived_us < self._jobs[-1].arrived_us:
            insort(self._jobs, job, key=_ARRIVAL)
        else:
            self._jobs.append(job)
        self.next_us = self._jobs[0].arrived_us

    def left(self) -> Sequence[SimulatedJob]:
        return list(self._jobs)

    def take_until(self, until_us: int) -> list[SimulatedJob]:
        taken: list[SimulatedJob] = []
        while self._jobs and self._jobs[0].arrived_us <= until_us:
            taken.append(self._jobs.popleft())
        self.next_us = self._jobs[0].arrived_us if self._jobs else math.inf
        return taken

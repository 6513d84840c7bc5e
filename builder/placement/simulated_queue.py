"""The queue in front of the simulated machine, with or without admission."""

from __future__ import annotations

import math
from collections.abc import Sequence

from backends.errors import HplmError
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.deadline_aware import DeadlineAware, SlottedDeadlineAware
from backends.scheduling.policies import (
    EarliestDeadlineFirst,
    FirstComeFirstServed,
    LeastSlack,
    Policy,
    ShortestJobFirst,
)
from backends.scheduling.rejection import RejectedError
from backends.scheduling.settings import Capacity
from backends.scheduling.waiting_room import WaitingRoom
from builder.placement.late_watch import LateWatch
from builder.placement.simulated_job import SimulatedJob

_TAKE_ALL_THAT_FITS = (
    FirstComeFirstServed,
    ShortestJobFirst,
    EarliestDeadlineFirst,
    LeastSlack,
    DeadlineAware,
    SlottedDeadlineAware,
)
"""Policies whose batch is all that waits, as long as it fits into one; they need not be asked then."""


class SimulatedQueue:
    """Jobs that wait, as admission sees them; without admission all may wait.

    Most batches of a machine that is not overloaded hold all jobs that wait, and a waiting room of columns is not worth
    its while for them. So without admission a job that arrives is only noted, and enters the room when a policy has to
    choose.
    """

    def __init__(
        self,
        policy: Policy,
        capacity: Capacity,
        admission: Admission[SimulatedJob] | None = None,
        late: LateWatch | None = None,
    ) -> None:
        self._policy = policy
        self._capacity = capacity
        self._admission = admission
        self._late = late
        self._takes_all_that_fit = type(policy) in _TAKE_ALL_THAT_FITS
        self._room: WaitingRoom[SimulatedJob] = WaitingRoom() if admission is None else admission.waiting
        self._coming: list[SimulatedJob] = []
        """Not in the room yet."""
        self._rows = 0
        self._tokens = 0
        self._next_deadline_us: float = math.inf
        """No job that waits is late before it."""

    def __len__(self) -> int:
        return self._rows

    @property
    def next_change_us(self) -> float:
        """Until then a batch that is not full stays so, unless a job arrives.

        A job that leaves late leaves room in a batch of all that wait. Another policy may choose quite another batch.
        """
        return math.inf if self._takes_all_that_fit else self._next_deadline_us

    def room(self) -> tuple[int, int]:
        """Return how many rows, and tokens, may come before it can matter to a batch that is not full when they do."""
        if not self._takes_all_that_fit:
            return 0, 0
        capacity = self._capacity
        most_rows = min(capacity.max_rows - 1, capacity.max_adapters)
        return max(0, most_rows - self._rows), max(0, capacity.max_tokens - self._tokens)

    def left(self) -> list[SimulatedJob]:
        """Return the jobs that wait."""
        return [*self._room, *self._coming]

    def add(self, jobs: Sequence[SimulatedJob]) -> None:
        """Queue jobs behind all others, whatever admission would say."""
        self._coming.extend(jobs)
        self._note_entered(jobs)

    def admit(self, job: SimulatedJob) -> RejectedError | None:
        """Queue a job that arrives, if admission lets it wait; returns why not."""
        if self._admission is None:
            raise HplmError("a queue without admission admits all jobs")
        rejection = self._admission.admit((job,), job.arrived_us)
        if rejection is None:
            self._note_entered((job,))
        return rejection

    def drop_late(self, now_us: int) -> None:
        if now_us < self._next_deadline_us:
            return
        room = self._seated()
        late = room.take_late(now_us) if self._admission is None else self._admission.drop_late(now_us)
        self._note_gone(late)
        self._next_deadline_us = room.next_deadline_us

    def next_batch(self, now_us: int) -> list[SimulatedJob]:
        """Take the policy's batch, for a machine that is free."""
        if self._is_one_open_batch() and self._admission is None:
            return self._take_all()
        return self._take(self._selected(now_us), now_us)

    def full_batch(self, now_us: int) -> list[SimulatedJob]:
        """Take the policy's batch, if it cannot grow any more, as the serve loop judges it; otherwise none.

        Its infeasible jobs leave the queue, and room for others.
        """
        while self._rows and not self._is_one_open_batch():
            chosen = self._selected(now_us)
            if len(chosen) == self._rows < self._capacity.max_rows:
                return []
            infeasible = [] if self._admission is None else self._admission.infeasible(chosen, now_us)
            if self._admission is None or not infeasible:
                return self._take(chosen, now_us)
            self._note_gone(self._admission.drop(infeasible))
        return []

    def _is_one_open_batch(self) -> bool:
        """Whether all jobs that wait go into one batch that still has room; a single job does with any policy."""
        capacity, rows = self._capacity, self._rows
        return (
            (self._takes_all_that_fit or rows == 1)
            and rows < capacity.max_rows
            and rows <= capacity.max_adapters
            and (rows == 1 or self._tokens <= capacity.max_tokens)
        )

    def _selected(self, now_us: int) -> list[int]:
        room = self._seated()
        chosen = self._policy.select(room, now_us, self._capacity)
        if not chosen:
            raise HplmError(f"the policy chose none of {len(room)} jobs")
        return chosen

    def _take(self, chosen: list[int], now_us: int) -> list[SimulatedJob]:
        if self._admission is None:
            jobs = self._seated().take_batch(chosen)
        else:
            jobs = self._admission.take_batch(chosen, now_us)
            self._admission.batches.staged(BatchShape.of(jobs), jobs[0].root)
        self._note_gone(jobs)
        return jobs

    def _take_all(self) -> list[SimulatedJob]:
        room = self._room
        jobs = room.take_batch(range(len(room))) + self._coming
        self._coming = []
        self._rows = self._tokens = 0
        self._next_deadline_us = math.inf
        if self._late is not None:
            self._late.leave(jobs)
        return jobs

    def _note_entered(self, jobs: Sequence[SimulatedJob]) -> None:
        if self._late is not None:
            self._late.enter(jobs)
        self._rows += len(jobs)
        for job in jobs:
            self._tokens += job.num_tokens
            if job.deadline_us is not None and job.deadline_us < self._next_deadline_us:
                self._next_deadline_us = job.deadline_us

    def _note_gone(self, jobs: Sequence[SimulatedJob]) -> None:
        if self._late is not None:
            self._late.leave(jobs)
        self._rows -= len(jobs)
        self._tokens -= sum(job.num_tokens for job in jobs)

    def _seated(self) -> WaitingRoom[SimulatedJob]:
        """The room, with all jobs in it."""
        if self._coming:
            self._room.add(self._coming)
            self._coming = []
        return self._room

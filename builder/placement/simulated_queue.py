"""The queue in front of the simulated machine: the one place that knows how policies want to see who waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.errors import HplmError
from backends.scheduling.deadline_aware import DeadlineAware
from backends.scheduling.first_come import FirstComeFirstServed
from backends.scheduling.ordered import EarliestDeadlineFirst, LeastSlack, ShortestJobFirst
from backends.scheduling.policy import Capacity, Policy
from backends.scheduling.waiting_room import WaitingRoom
from builder.placement.simulated_job import SimulatedJob

_TAKE_ALL_THAT_FITS = (FirstComeFirstServed, ShortestJobFirst, EarliestDeadlineFirst, LeastSlack, DeadlineAware)
"""Policies whose batch is whoever waits, as long as all of them fit into one; they need not be asked then."""


Shed = Callable[[Sequence[SimulatedJob], int], Sequence[SimulatedJob]]
"""Those of a batch that would be late in it, at this time; they are refused."""


class SimulatedQueue:
    """Whoever comes is noted only, and gets a place in the policy's waiting room when that is looked at.

    Most batches of a machine that is not overloaded are of all who wait. For them a waiting room of columns is not
    worth its while.
    """

    def __init__(self, policy: Policy, capacity: Capacity) -> None:
        self._policy = policy
        self._capacity = capacity
        self._takes_all_that_fit = type(policy) in _TAKE_ALL_THAT_FITS
        self._room: WaitingRoom[SimulatedJob] = WaitingRoom()
        self._coming: list[_Arrived] = []
        """Not in the room yet."""
        self._rows = 0
        self._tokens = 0
        self._next_deadline_us: float = math.inf
        """Nobody who waits is late before it."""

    def __len__(self) -> int:
        return self._rows

    @property
    def next_change_us(self) -> float:
        """Until then a batch that is not full stays so, unless somebody comes.

        Whoever leaves late leaves room in a batch of all who wait. Another policy may choose quite another batch.
        """
        return math.inf if self._takes_all_that_fit else self._next_deadline_us

    def add(self, jobs: Sequence[SimulatedJob], start_us: float | None = None, within_share: bool = True) -> None:
        """Behind all that start no later; without a time, behind all others."""
        last = self._coming[-1] if self._coming else None
        if last is None or (last.start_us, last.within_share) != (start_us, within_share):
            self._coming.append(_Arrived(start_us, within_share, []))
        self._coming[-1].jobs.extend(jobs)
        self._rows += len(jobs)
        for job in jobs:
            self._tokens += job.num_tokens
            if job.deadline_us is not None and job.deadline_us < self._next_deadline_us:
                self._next_deadline_us = job.deadline_us

    def drop_late(self, now_us: int) -> list[SimulatedJob]:
        """In the order in which they became late."""
        if now_us < self._next_deadline_us:
            return []
        room = self._seated()
        late = room.take_late(now_us)
        self._note_gone(late)
        self._next_deadline_us = room.next_deadline_us
        return sorted(late, key=_deadline_us)

    def next_batch(self, now_us: int) -> list[SimulatedJob]:
        """The policy's, for a machine that is free."""
        if self._is_one_open_batch():
            return self._take_all()
        return self._take(self._selected(now_us))

    def full_batch(self, now_us: int, shed: Shed) -> list[SimulatedJob]:
        """The policy's, if it cannot grow any more, as the serve loop judges it; otherwise nobody.

        Whoever is shed from it leaves the queue, and room for others.
        """
        while self._rows and not self._is_one_open_batch():
            chosen = self._selected(now_us)
            if len(chosen) == self._rows < self._capacity.max_rows:
                return []
            room = self._room
            late = set(shed([room[place] for place in chosen], now_us))
            if not late:
                return self._take(chosen)
            self._note_gone(room.take([place for place in chosen if room[place] in late]))
        return []

    def _is_one_open_batch(self) -> bool:
        """Whether all who wait go into one batch that still has room; a single job does with any policy."""
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

    def _take(self, chosen: list[int]) -> list[SimulatedJob]:
        jobs = self._seated().take_batch(chosen)
        self._note_gone(jobs)
        return jobs

    def _note_gone(self, jobs: Sequence[SimulatedJob]) -> None:
        self._rows -= len(jobs)
        self._tokens -= sum(job.num_tokens for job in jobs)

    def _take_all(self) -> list[SimulatedJob]:
        room = self._room
        jobs = room.take_batch(range(len(room))) + [job for arrived in self._coming for job in arrived.jobs]
        self._coming = []
        self._rows = self._tokens = 0
        self._next_deadline_us = math.inf
        return jobs

    def _seated(self) -> WaitingRoom[SimulatedJob]:
        """The room, with everybody in it."""
        for arrived in self._coming:
            self._room.add(arrived.jobs, arrived.start_us, arrived.within_share)
        self._coming = []
        return self._room


@dataclass(frozen=True, slots=True)
class _Arrived:
    """One after the other, with one place."""

    start_us: float | None
    within_share: bool
    jobs: list[SimulatedJob]


def _deadline_us(job: SimulatedJob) -> float:
    return math.inf if job.deadline_us is None else job.deadline_us

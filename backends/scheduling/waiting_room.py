"""Who waits: the jobs, and what policies ask about them as columns.

A decision among 10,000 jobs must not walk through them one by one. So each property that decisions are made by is an
array, kept up to date as jobs come and go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from backends.scheduling.policy import Waiting
from backends.stack_key import StackKey

JobT = TypeVar("JobT", bound=Waiting)
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
"""Where jobs wait: 0 is the front of the queue."""

_JOB, _ROOT, _HPLM_KEY, _NUM_TOKENS, _DEADLINE_US, _ARRIVED_US, _START_US, _WITHIN_SHARE = range(8)
_DTYPES = (np.object_, np.int64, np.int64, np.int64, np.float64, np.int64, np.float64, np.bool_)
_FIRST_SIZE = 64


class WaitingRoom(Generic[JobT]):
    """A queue whose places are numbered from its front; not safe among threads.

    Semantics:
        Jobs stand in the order of the times from which they are due to run, those of one time in the order in which
        they came. `put_back` is for jobs that were taken and could not run.
        The columns are views, valid until a job comes or goes.
    """

    def __init__(self, jobs: Sequence[JobT] = ()) -> None:
        self._columns: list[npt.NDArray[Any]] = [np.empty(_FIRST_SIZE, dtype) for dtype in _DTYPES]
        self._size = 0
        self._root_numbers: dict[StackKey, int] = {}
        self._root_names: list[StackKey] = []
        self.batches_taken = 0
        """Lets a policy give each fourth batch to somebody, and stay pure."""
        self.add(jobs)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[JobT]:
        return iter(self._columns[_JOB][: self._size].tolist())

    def __getitem__(self, place: int) -> JobT:
        job: JobT = self._columns[_JOB][: self._size][place]
        return job

    @property
    def root(self) -> Int64:
        """Numbers, the same for the same root."""
        return self._columns[_ROOT][: self._size]

    def count_of_root_at(self, place: int) -> int:
        """How many of that job's root wait, itself included: all that a batch with it could hold."""
        return int(np.count_nonzero(self.root == self.root[place]))

    def root_name(self, number: int) -> StackKey:
        return self._root_names[number]

    @property
    def hplm_key(self) -> Int64:
        return self._columns[_HPLM_KEY][: self._size]

    @property
    def num_tokens(self) -> Int64:
        return self._columns[_NUM_TOKENS][: self._size]

    @property
    def deadline_us(self) -> Float64:
        """Infinite where a job has none."""
        return self._columns[_DEADLINE_US][: self._size]

    @property
    def arrived_us(self) -> Int64:
        return self._columns[_ARRIVED_US][: self._size]

    @property
    def next_deadline_us(self) -> float:
        """Nobody is late before it."""
        return float(self.deadline_us.min()) if self._size else math.inf

    def places_without_deadline(self, arrived_by_us: int) -> Places:
        return np.flatnonzero(np.isinf(self.deadline_us) & (self.arrived_us <= arrived_by_us))

    @property
    def within_share(self) -> npt.NDArray[np.bool_]:
        """Who is to be chosen first, by policies that go by something else than the order in which jobs stand."""
        return self._columns[_WITHIN_SHARE][: self._size]

    def add(self, jobs: Sequence[JobT], start_us: float | None = None, within_share: bool = True) -> None:
        """Behind all that are due no later; without a time, behind all others."""
        starts = self._columns[_START_US][: self._size]
        if start_us is None:
            start_us = float(starts[-1]) if self._size else -math.inf
        self._insert(int(np.searchsorted(starts, start_us, side="right")), jobs, start_us, within_share)

    def put_back(self, jobs: Sequence[JobT]) -> None:
        """In front of all others."""
        self._insert(0, jobs, -math.inf, within_share=True)

    def take_batch(self, places: Sequence[int]) -> list[JobT]:
        """Out they go to run, in the order of `places`."""
        self.batches_taken += 1
        return self.take(places)

    def take(self, places: Sequence[int] | Places) -> list[JobT]:
        if not len(places):
            return []
        chosen = np.asarray(places, np.intp)
        jobs: list[JobT] = self._columns[_JOB][: self._size][chosen].tolist()
        stays = np.ones(self._size, np.bool_)
        stays[chosen] = False
        new_size = int(np.count_nonzero(stays))
        for column in self._columns:
            column[:new_size] = column[: self._size][stays]
        self._columns[_JOB][new_size : self._size] = None  # or their tensors would live on here
        self._size = new_size
        return jobs

    def take_late(self, now_us: int) -> list[JobT]:
        """Whoever cannot be answered before the deadline any more, because it has passed."""
        return self.take(np.flatnonzero(self.deadline_us <= now_us))

    def take_all(self) -> list[JobT]:
        return self.take(range(self._size))

    def _grow(self, count: int) -> None:
        old_size, self._size = self._size, self._size + count
        if self._size > len(self._columns[_JOB]):
            larger: list[npt.NDArray[Any]] = [np.empty(2 * self._size, dtype) for dtype in _DTYPES]
            for old, new in zip(self._columns, larger, strict=True):
                new[:old_size] = old[:old_size]
            self._columns = larger

    def _insert(self, place: int, jobs: Sequence[JobT], start_us: float, within_share: bool) -> None:
        old_size = self._size
        self._grow(len(jobs))
        if place < old_size:
            for column in self._columns:
                column[place + len(jobs) : self._size] = column[place:old_size].copy()
        self._write(place, jobs, start_us, within_share)

    def _write(self, place: int, jobs: Sequence[JobT], start_us: float, within_share: bool) -> None:
        values: tuple[Sequence[Any], ...] = (
            jobs,
            [self._root_number(job.root) for job in jobs],
            [job.hplm_key for job in jobs],
            [job.num_tokens for job in jobs],
            [math.inf if job.deadline_us is None else job.deadline_us for job in jobs],
            [job.arrived_us for job in jobs],
            [start_us] * len(jobs),
            [within_share] * len(jobs),
        )
        for column, of_jobs in zip(self._columns, values, strict=True):
            column[place : place + len(jobs)] = np.fromiter(of_jobs, column.dtype, len(jobs))

    def _root_number(self, name: StackKey) -> int:
        if name not in self._root_numbers:
            self._root_numbers[name] = len(self._root_names)
            self._root_names.append(name)
        return self._root_numbers[name]

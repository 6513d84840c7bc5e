"""The queue of an engine: the jobs that wait, and what policies and admission ask about them as columns.

A decision among 10,000 jobs must not walk through them one by one. So each property that decisions are made by is an
array, kept up to date as jobs come and go.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from backends.stack_key import StackKey


class Waiting(Protocol):
    """What scheduling sees of a job."""

    @property
    def root(self) -> StackKey:
        """The stack that it runs on."""
        ...

    @property
    def hplm_key(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def deadline_us(self) -> int | None: ...
    @property
    def arrived_us(self) -> int: ...
    @property
    def depth(self) -> float:
        """The share of the layers that it is likely to pass; 1 unless it may leave early, or lose words on its way."""
        ...

    @property
    def kept(self) -> float:
        """The share of its tokens that it is likely to keep if it goes on at its exit."""
        ...

    @property
    def least_depth(self) -> float:
        """The share after which it can be answered at the earliest."""
        ...

    @property
    def exit_depth(self) -> float:
        """The share after which it leaves where it is sure; 1 where it never does."""
        ...

    @property
    def most_depth(self) -> float:
        """The share that it may pass where the load allows it, which is known once its batch starts."""
        ...


JobT = TypeVar("JobT", bound=Waiting)
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
"""Positions of jobs in a waiting room: 0 is the front of the queue."""

_JOB, _ROOT, _HPLM_KEY, _NUM_TOKENS, _DEADLINE_US, _ARRIVED_US, _START_US, _WITHIN_SHARE, _DEPTH, _LEAST, _MOST = range(
    11
)
_DTYPES = (
    *(np.object_, np.int64, np.int64, np.int64, np.float64, np.int64, np.float64, np.bool_),
    *(np.float64, np.float64, np.float64),
)
_FIRST_SIZE = 64


class WaitingRoom(Generic[JobT]):
    """A queue that is indexed from its front; not safe among threads.

    Semantics:
        Jobs stand in the order of their virtual start times (`fair_share`), those of one time in the order in which
        they came. `put_back` is for jobs that were taken and could not run.
        The columns are views, valid until a job comes or goes.
    """

    def __init__(self, jobs: Sequence[JobT] = ()) -> None:
        self._columns: list[npt.NDArray[Any]] = [np.empty(_FIRST_SIZE, dtype) for dtype in _DTYPES]
        self._size = 0
        self._root_numbers: dict[StackKey, int] = {}
        self._root_names: list[StackKey] = []
        self.batches_taken = 0
        """Lets a policy treat each fourth batch differently, and stay pure."""
        self.add(jobs)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[JobT]:
        return iter(self._columns[_JOB][: self._size].tolist())

    def __getitem__(self, index: int) -> JobT:
        job: JobT = self._columns[_JOB][: self._size][index]
        return job

    @property
    def root(self) -> Int64:
        """Numbers, the same for the same stack."""
        return self._columns[_ROOT][: self._size]

    def count_of_root_at(self, index: int) -> int:
        """Count the jobs of that job's stack, itself included: all that a batch with it could hold."""
        return int(np.count_nonzero(self.root == self.root[index]))

    def count_stacks(self, chosen: Bools, other: StackKey) -> int:
        """Count the stacks of some jobs and of another job."""
        if len(self._root_names) == 1 and other in self._root_numbers:
            return 1
        of_chosen = np.flatnonzero(np.bincount(self.root[chosen], minlength=1)).tolist()
        return len({*of_chosen, self._root_numbers.get(other, -1)} if len(self) else {0})

    def number_of(self, stack: StackKey) -> int | None:
        """A stack's number among `root`; None if no job has run on it."""
        return self._root_numbers.get(stack)

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
    def start_us(self) -> Float64:
        """Virtual start times, in ascending order."""
        return self._columns[_START_US][: self._size]

    @property
    def within_share(self) -> Bools:
        """Which jobs policies that do not go by fair shares choose first."""
        return self._columns[_WITHIN_SHARE][: self._size]

    @property
    def depth(self) -> Float64:
        """As it was when the jobs came, or `update` was called for them."""
        return self._columns[_DEPTH][: self._size]

    @property
    def least_depth(self) -> Float64:
        return self._columns[_LEAST][: self._size]

    @property
    def most_depth(self) -> Float64:
        return self._columns[_MOST][: self._size]

    def lengths_by_stack(
        self, chosen: Bools, depths: Float64 | None = None
    ) -> list[tuple[StackKey, int, int, float, float]]:
        """Add up some jobs, for each stack that has any of them.

        Returns their number, their tokens, and tokens and squares of lengths times depths: their own, or other ones.
        """
        passed = (self.depth if depths is None else depths) * self.num_tokens
        squares = passed * self.num_tokens
        if len(self._root_names) == 1:
            count = int(np.count_nonzero(chosen))
            sums = int(self.num_tokens @ chosen), float(passed @ chosen), float(squares @ chosen)
            return [(self._root_names[0], count, *sums)] if count else []
        roots = self.root[chosen]
        rows, tokens = (
            np.bincount(roots, weights).astype(np.int64).tolist() for weights in (None, self.num_tokens[chosen])
        )
        passed_of, squared_of = (np.bincount(roots, weights[chosen]).tolist() for weights in (passed, squares))
        return [
            (self._root_names[root], rows[root], tokens[root], passed_of[root], squared_of[root])
            for root in np.flatnonzero(rows)
        ]

    @property
    def next_deadline_us(self) -> float:
        """The earliest deadline, infinite where there is none."""
        return float(self.deadline_us.min()) if self._size else math.inf

    def without_deadline(self, arrived_by_us: int) -> Indices:
        return np.flatnonzero(np.isinf(self.deadline_us) & (self.arrived_us <= arrived_by_us))

    def add(self, jobs: Sequence[JobT], start_us: float | None = None, within_share: bool = True) -> None:
        """Insert jobs behind all that start no later; without a time, behind all others."""
        if start_us is None:
            start_us = float(self.start_us[-1]) if self._size else -math.inf
        # NumPy's own search lets other threads go first, which costs more than the search.
        is_last = not self._size or self.start_us[-1] <= start_us
        index = self._size if is_last else bisect_right(self.start_us, start_us)
        self._insert(index, jobs, start_us, within_share)

    def update(self, index: int) -> None:
        """Take over the depth of a job, which has changed."""
        self._columns[_DEPTH][index] = self[index].depth

    def put_back(self, job: JobT, within_share: bool = True) -> None:
        """Insert a job in front of all others."""
        self._insert(0, [job], -math.inf, within_share)

    def take_batch(self, indices: Sequence[int]) -> list[JobT]:
        """Remove jobs that are to run; returns them in the order of `indices`."""
        self.batches_taken += 1
        return self.take(indices)

    def take(self, indices: Sequence[int] | Indices) -> list[JobT]:
        if not len(indices):
            return []
        chosen = np.asarray(indices, np.intp)
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
        """Remove the jobs whose deadline has passed."""
        return self.take(np.flatnonzero(self.deadline_us <= now_us))

    def take_all(self) -> list[JobT]:
        return self.take(range(self._size))

    def _insert(self, index: int, jobs: Sequence[JobT], start_us: float, within_share: bool) -> None:
        old_size = self._size
        self._grow(len(jobs))
        if index < old_size:
            for column in self._columns:
                column[index + len(jobs) : self._size] = column[index:old_size].copy()
        self._write(index, jobs, start_us, within_share)

    def _grow(self, count: int) -> None:
        old_size, self._size = self._size, self._size + count
        if self._size > len(self._columns[_JOB]):
            larger: list[npt.NDArray[Any]] = [np.empty(2 * self._size, dtype) for dtype in _DTYPES]
            for old, new in zip(self._columns, larger, strict=True):
                new[:old_size] = old[:old_size]
            self._columns = larger

    def _write(self, index: int, jobs: Sequence[JobT], start_us: float, within_share: bool) -> None:
        for number, job in enumerate(jobs):
            values = (
                job,
                self._root_number(job.root),
                job.hplm_key,
                job.num_tokens,
                math.inf if job.deadline_us is None else job.deadline_us,
                job.arrived_us,
                start_us,
                within_share,
                job.depth,
                job.least_depth,
                job.most_depth,
            )
            for column, value in zip(self._columns, values, strict=True):
                column[index + number] = value

    def _root_number(self, name: StackKey) -> int:
        number = self._root_numbers.get(name)
        if number is None:
            number = self._root_numbers[name] = len(self._root_names)
            self._root_names.append(name)
        return number

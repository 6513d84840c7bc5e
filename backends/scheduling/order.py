"""In which order a policy runs jobs, approximated by one number of each job: what admission predicts by.

Usage:
    order = policy.order
    ahead = order.ahead(waiting, job, start_us)         # which of the jobs that wait run before the job
    times_us = order.overtaking_us(waiting, job, capacity, now_us, in_us)  # how long arrivals of each kind overtake it
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from backends.scheduling.cost_model import CostModel
from backends.scheduling.settings import Capacity
from backends.scheduling.waiting_room import Bools, Float64, Waiting, WaitingRoom

_LONGEST_TOKENS = 512
_DEADLINES = 128
_DEADLINES_PER_OCTAVE = 4
_SHORTEST_DEADLINE_US = 1000.0
_DUE_PART = 0.8
_AFTER_ALL_DEADLINES_US = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Load:
    """Sums over rows; `work_us` is what they add to batches that run anyway."""

    rows: float
    tokens: float
    work_us: float

    @classmethod
    def of(cls, job: Waiting, model: CostModel) -> Load:
        return cls(1.0, job.num_tokens, model.row_us(job.num_tokens, job.depth))

    def __add__(self, other: Load) -> Load:
        return Load(self.rows + other.rows, self.tokens + other.tokens, self.work_us + other.work_us)


NOTHING = Load(0.0, 0.0, 0.0)


class KindOrder(Protocol):
    """Arrivals are told apart by kinds, numbered from 0, as far as matters for which of them overtake a job.

    Jobs within their tenants' shares go first.
    """

    goes_by_length: bool
    sure_part: float
    """A row is sure to be in the next batch if it and all before it fill no more than this part of it."""
    num_kinds: int

    def ahead(self, waiting: WaitingRoom[Any], job: Waiting, start_us: float) -> Bools:
        """Tell which jobs would run before `job`, whose virtual start time would be `start_us`."""
        ...

    def kind(self, job: Waiting, now_us: int) -> int:
        """Return the kind of a job that arrives now."""
        ...

    def overtaking_us(
        self, waiting: WaitingRoom[Any], job: Waiting, capacity: Capacity, now_us: int, in_us: float
    ) -> Float64:
        """Tell for how much of the next `in_us` arrivals of each kind would run before a job that arrives now.

        Shape:
            `[num_kinds]`.
        """
        ...


class FairOrder:
    """The earliest virtual start time first. Later arrivals overtake within their shares, which is counted there."""

    goes_by_length = False

    def ahead(self, waiting: WaitingRoom[Any], job: Waiting, start_us: float) -> Bools:
        ahead: Bools = waiting.start_us <= start_us
        return ahead


class LengthOrder:
    """The shortest first; a kind is a length."""

    goes_by_length = True
    sure_part = 1.0
    num_kinds = _LONGEST_TOKENS + 1
    _LENGTHS = np.arange(num_kinds)

    def ahead(self, waiting: WaitingRoom[Any], job: Waiting, start_us: float) -> Bools:
        ahead: Bools = waiting.num_tokens <= job.num_tokens
        return ahead

    def kind(self, job: Waiting, now_us: int) -> int:
        return min(job.num_tokens, _LONGEST_TOKENS)

    def overtaking_us(
        self, waiting: WaitingRoom[Any], job: Waiting, capacity: Capacity, now_us: int, in_us: float
    ) -> Float64:
        return np.where(job.num_tokens > self._LENGTHS, in_us, 0.0)


class UtilityOrder(LengthOrder):
    """The shortest first, except that jobs of similar length go by their deadlines in a part of each batch.

    Semantics:
        Jobs shorter by more than the factor `q` always overtake, those of similar length
        - a job that is too long to go by its deadline: in the part `eta` by length, and in half of the rest;
        - one that may go by its deadline: in four fifths of the part `eta`, for it runs when it is due.
        The four fifths were chosen in virtual time, on lengths that hardly differ. With all of it, 72 % instead of 76 %
        of the jobs are on time at twice the capacity; with three fifths 2 % of the admitted are late at three times.
    """

    def __init__(self, eta: float, q: float) -> None:
        self._eta = eta
        self._q = q

    def overtaking_us(
        self, waiting: WaitingRoom[Any], job: Waiting, capacity: Capacity, now_us: int, in_us: float
    ) -> Float64:
        is_much_shorter = self._q * job.num_tokens > self._LENGTHS
        similar = _DUE_PART * self._eta if self._goes_by_deadline(waiting, job, capacity) else (1.0 + self._eta) / 2
        return np.where(is_much_shorter, 1.0, similar) * super().overtaking_us(waiting, job, capacity, now_us, in_us)

    def _goes_by_deadline(self, waiting: WaitingRoom[Any], job: Waiting, capacity: Capacity) -> bool:
        """Whether a job is worth enough beside the utility-dominant ones of those that wait (`deadline_aware`)."""
        lengths = np.append(waiting.num_tokens, job.num_tokens)
        if len(lengths) > capacity.max_rows:
            lengths = np.partition(lengths, capacity.max_rows)[: capacity.max_rows]
        lengths.sort()
        num_fitting = max(1, int(np.count_nonzero(lengths.cumsum() <= capacity.max_tokens)))
        dominant = lengths[: math.ceil(self._eta * num_fitting)]
        return bool(1 / job.num_tokens >= self._q * (1 / dominant).mean())


class SlottedOrder(LengthOrder):
    """The shortest first. The part `eta` of a batch is sure to fit into the slots, half of the rest is likely to."""

    def __init__(self, eta: float) -> None:
        self.sure_part = (1.0 + eta) / 2


class DeadlineOrder:
    """The earliest deadline first; a kind is a time from arrival to deadline, in steps of a fifth; the last is none.

    A job that arrives after w and is due x later overtakes a job that is due later than in w + x. Jobs without a
    deadline overtake none, not even each other.
    """

    goes_by_length = False
    sure_part = 1.0
    num_kinds = _DEADLINES
    _DEADLINE_US = np.append(
        _SHORTEST_DEADLINE_US * 2 ** ((np.arange(num_kinds - 1) + 0.5) / _DEADLINES_PER_OCTAVE), math.inf
    )

    def ahead(self, waiting: WaitingRoom[Any], job: Waiting, start_us: float) -> Bools:
        due_us = math.inf if job.deadline_us is None else job.deadline_us
        ahead: Bools = waiting.deadline_us <= due_us
        return ahead

    def kind(self, job: Waiting, now_us: int) -> int:
        if job.deadline_us is None:
            return _DEADLINES - 1
        times = max(1.0, (job.deadline_us - now_us) / _SHORTEST_DEADLINE_US)
        return min(_DEADLINES - 2, int(_DEADLINES_PER_OCTAVE * math.log2(times)))

    def overtaking_us(
        self, waiting: WaitingRoom[Any], job: Waiting, capacity: Capacity, now_us: int, in_us: float
    ) -> Float64:
        due_in_us = _AFTER_ALL_DEADLINES_US if job.deadline_us is None else job.deadline_us - now_us
        return np.clip(due_in_us - self._DEADLINE_US, 0.0, max(0.0, in_us))


Order = FairOrder | KindOrder
"""Only the first one itself shares fairly."""

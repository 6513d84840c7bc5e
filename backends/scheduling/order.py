"""In which order a policy runs what waits, as far as one number of a job can say: what admission predicts by.

Usage:
    order = policy.order
    order.place(job, start_us)                      # of two that wait, the lower one runs first
    order.overtaking_us(job, now_us, in_us)         # for how long of the time to come arrivals would overtake the job
    order.took(jobs, left_others)                   # what is in a batch may change who overtakes whom
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from backends.scheduling.due_kinds import DueKinds
from backends.scheduling.policy import Waiting

Floats = npt.NDArray[np.float64]

_LONGEST_TOKENS = 512
_LENGTHS_PER_OCTAVE = 12


class Order(Protocol):
    """Of one queue. Arrivals are told apart by kinds, numbered from 0, as far as matters for who overtakes whom."""

    is_fair: bool
    """Whether whoever takes jobs in this order shares fairly; with other orders those within their shares go first."""
    runs_when_due: bool
    """Whether a row that has missed the next batch still runs before others once its deadline comes near."""
    resolution: float
    """Places that are no further apart count as one."""
    num_kinds: int

    def place(self, job: Waiting, start_us: float) -> float:
        """Where the job stands; `start_us` is where fair shares let it start."""
        ...

    def kind(self, job: Waiting, now_us: int) -> int:
        """Of a job that arrives now."""
        ...

    def overtaking_us(self, job: Waiting, now_us: int, in_us: float) -> Floats:
        """For how much of the next `in_us` arrivals of each kind would run before a job that arrives now.

        Shape: `[num_kinds]`.
        """
        ...

    def took(self, jobs: Sequence[Waiting], left_others: bool) -> None:
        """The policy has chosen these, at least one and all of one root, and others may wait on."""
        ...


class FairOrder:
    """Whoever starts first in fair shares. Nobody overtakes but in his share, which is counted there."""

    is_fair = True
    runs_when_due = False
    resolution = 1000.0
    num_kinds = 1
    _NEVER = np.zeros(1)

    def place(self, job: Waiting, start_us: float) -> float:
        return start_us

    def kind(self, job: Waiting, now_us: int) -> int:
        return 0

    def overtaking_us(self, job: Waiting, now_us: int, in_us: float) -> Floats:
        return self._NEVER

    def took(self, jobs: Sequence[Waiting], left_others: bool) -> None:
        pass


class LengthOrder:
    """The shortest first; a kind is a length."""

    is_fair = False
    runs_when_due = False
    resolution = 1.0
    num_kinds = _LONGEST_TOKENS + 1
    _LENGTHS = np.arange(num_kinds)

    def place(self, job: Waiting, start_us: float) -> float:
        return float(job.num_tokens)

    def kind(self, job: Waiting, now_us: int) -> int:
        return min(job.num_tokens, _LONGEST_TOKENS)

    def overtaking_us(self, job: Waiting, now_us: int, in_us: float) -> Floats:
        return in_us * (job.num_tokens > self._LENGTHS)

    def took(self, jobs: Sequence[Waiting], left_others: bool) -> None:
        pass


class UtilityOrder:
    """The shortest first, but for a part of each batch in which those of similar worth go by their deadlines.

    Kinds are lengths and deadlines, both in classes.

    Args:
        eta: The part that goes by length.
        q: What is shorter by more than this factor is worth more in any case, and overtakes as often as it comes. What
            is shorter by less does so in the part that goes by length, and in the other one where it is due earlier,
            as do longer ones that are worth enough.
            A job worth less than this part of what goes by length now has no place in the other part, but may come to
            have one: in virtual time, that half of what comes later overtakes it there lets it keep its promises
            (0.995 of them at three times the capacity) and refuses less than that all does.
    """

    is_fair = False
    runs_when_due = True
    resolution = 1.0
    _DUE = DueKinds(num_kinds=34, per_octave=2, shortest_us=4000.0)
    _LENGTHS = sorted({round(2 ** (step / _LENGTHS_PER_OCTAVE)) for step in range(9 * _LENGTHS_PER_OCTAVE + 1)})
    num_kinds = len(_LENGTHS) * _DUE.num_kinds

    def __init__(self, eta: float, q: float) -> None:
        self._eta = eta
        self._q = q
        self._longest_worthy_tokens: dict[str, float] = {}
        """By root, where the last batch was full."""

    def place(self, job: Waiting, start_us: float) -> float:
        return float(job.num_tokens)

    def kind(self, job: Waiting, now_us: int) -> int:
        place = max(0, bisect_right(self._LENGTHS, job.num_tokens) - 1)
        return place * self._DUE.num_kinds + self._DUE.kind(job, now_us)

    def overtaking_us(self, job: Waiting, now_us: int, in_us: float) -> Floats:
        by_kind_us = np.zeros((len(self._LENGTHS), self._DUE.num_kinds))
        much_shorter = bisect_left(self._LENGTHS, self._q * job.num_tokens)
        shorter = bisect_left(self._LENGTHS, job.num_tokens)
        by_kind_us[:much_shorter] = in_us
        longest_worthy_tokens = self._longest_worthy_tokens.get(job.root, math.inf)
        if job.num_tokens > longest_worthy_tokens:
            by_kind_us[much_shorter:shorter] = (1.0 + self._eta) / 2 * in_us
            return by_kind_us.ravel()
        in_rest_us = (1.0 - self._eta) * self._DUE.due_earlier_us(job, now_us, in_us)
        by_kind_us[much_shorter:shorter] = self._eta * in_us + in_rest_us
        by_kind_us[shorter : bisect_right(self._LENGTHS, longest_worthy_tokens)] = in_rest_us
        return by_kind_us.ravel()

    def took(self, jobs: Sequence[Waiting], left_others: bool) -> None:
        if not left_others:
            self._longest_worthy_tokens.pop(jobs[0].root, None)
            return
        by_length = sorted(job.num_tokens for job in jobs)[: math.ceil(self._eta * len(jobs))]
        mean_worth = sum(1 / tokens for tokens in by_length) / len(by_length)
        self._longest_worthy_tokens[jobs[0].root] = 1 / (self._q * mean_worth)


class DeadlineOrder:
    """The earliest deadline first; a kind is a time from the arrival to the deadline, to a fifth."""

    is_fair = False
    runs_when_due = False
    resolution = 1000.0
    _DUE = DueKinds(num_kinds=128, per_octave=4, shortest_us=1000.0)
    num_kinds = _DUE.num_kinds

    def place(self, job: Waiting, start_us: float) -> float:
        return math.inf if job.deadline_us is None else float(job.deadline_us)

    def kind(self, job: Waiting, now_us: int) -> int:
        return self._DUE.kind(job, now_us)

    def overtaking_us(self, job: Waiting, now_us: int, in_us: float) -> Floats:
        return self._DUE.due_earlier_us(job, now_us, in_us)

    def took(self, jobs: Sequence[Waiting], left_others: bool) -> None:
        pass

"""Rows that settle for the answer of an earlier layer: which ones, as few as suffice, and what it saves.

Usage (by admission):
    candidates = settling.candidates(job, is_ahead)
    finish_in_us(job, settling.if_first(candidates, 3))         # what would be predicted
    settling.settle_fewest(candidates, lambda count: …)
    settling.take_back()                                        # the request is rejected all the same
    settling.keep()                                             # it is admitted
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from backends.scheduling.accounts import Accounts, Charge, Predicted
from backends.scheduling.waiting_room import Bools, Float64, Indices, WaitingRoom


class Settleable(Predicted, Protocol):
    """A job as admission sees it; equal to no other job, and hashable."""

    def settle(self) -> bool:
        """Be content with the answer after fewer layers, if there is one; `depth` says after how many."""
        ...

    def unsettle(self, depth: float) -> None:
        """Go on as before, when the job was likely to pass this share of the layers."""
        ...


JobT = TypeVar("JobT", bound=Settleable)


class Supposed(NamedTuple):
    """What predictions count with if some rows that wait settled."""

    depths: Float64
    """Shares of the layers that the rows which wait would pass."""
    less_us: float
    """How much less the tenant of the job that is predicted would be charged."""


class Candidates(NamedTuple):
    """Rows that can settle for a job."""

    indices: Indices
    """In the order in which they would settle."""
    num_own: int
    """So many, the first ones, are of the job's tenant."""
    tenant: str

    @property
    def own(self) -> Candidates:
        return self._replace(indices=self.indices[: self.num_own])


class Settling(Generic[JobT]):
    """Has rows of a queue settle; their tenants pay for the layers that they will pass."""

    def __init__(self, waiting: WaitingRoom[JobT], accounts: Accounts[JobT]) -> None:
        self._waiting = waiting
        self._accounts = accounts
        self._before: dict[JobT, tuple[float, Charge]] = {}
        """Depths and charges, as they were, of those that have settled for the request that is being admitted."""

    def settle(self, index: int) -> bool:
        """Have a job of the queue settle; returns whether it can."""
        can = self._waiting[index].settle()
        if can:
            self._recharge(index, self._accounts.charge_of(self._waiting[index]).settled)
        return can

    def candidates(self, job: Predicted, is_ahead: Bools) -> Candidates:
        """Choose among rows that run before a job: first those of its hPLM, then its tenant's, then the next ones."""
        waiting = self._waiting
        indices = np.flatnonzero(is_ahead & (waiting.least_depth < waiting.depth))
        keys = waiting.hplm_key[indices]
        is_own = np.isin(keys, self._accounts.hplms_of(job.tenant))
        order = np.argsort(2 - is_own.astype(np.int8) - (keys == job.hplm_key), kind="stable")
        return Candidates(indices[order], int(np.count_nonzero(is_own)), job.tenant)

    def if_all(self) -> Supposed:
        """Suppose that all rows that can settle did, for a tenant that has none."""
        return Supposed(self._waiting.least_depth, 0.0)

    def if_own(self, tenant: str) -> Supposed:
        """Suppose that all of a tenant's rows that can settle did."""
        is_own = np.isin(self._waiting.hplm_key, self._accounts.hplms_of(tenant))
        depths = np.where(is_own, self._waiting.least_depth, self._waiting.depth)
        return Supposed(depths, self._accounts.saves_us(tenant))

    def if_first(self, candidates: Candidates, count: int) -> Supposed:
        """Suppose that so many candidates settled."""
        depths, first = self._waiting.depth.copy(), candidates.indices[:count]
        depths[first] = self._waiting.least_depth[first]
        if count >= candidates.num_own:
            return Supposed(depths, self._accounts.saves_us(candidates.tenant))
        return Supposed(
            depths, sum(self._accounts.charge_of(self._waiting[index]).saves_us for index in first.tolist())
        )

    def settle_fewest(self, candidates: Candidates, is_enough: Callable[[int], bool]) -> bool:
        """Have candidates settle, as few as are enough; none, and returns False, if all are not.

        Args:
            candidates: In the order in which they settle.
            is_enough: Whether it is enough if so many settled; true of all larger numbers too.
        """
        most = len(candidates.indices)
        if not most or not is_enough(most):
            return False
        for index in candidates.indices[: _fewest(is_enough, most)].tolist():
            job = self._waiting[index]
            before = job.depth, self._accounts.charge_of(job)
            if self.settle(index):
                self._before[job] = before
        return True

    def keep(self) -> None:
        """The request is admitted: nothing of what has settled for it is taken back."""
        self._before.clear()

    def take_back(self) -> None:
        """Have those go on as before that have settled for a request which is rejected all the same."""
        if not self._before:
            return
        for index, job in enumerate(self._waiting):
            if job in self._before:
                depth, charge = self._before[job]
                job.unsettle(depth)
                self._recharge(index, charge)
        self._before.clear()

    def _recharge(self, index: int, charge: Charge) -> None:
        """Take over the depth of a job of the queue, and charge this in place of what was charged."""
        self._waiting.update(index)
        self._accounts.recharge(self._waiting[index], charge)


def _fewest(is_enough: Callable[[int], bool], most: int) -> int:
    """Return the least number that is enough, where `most` is: in steps that double, as it is small as a rule."""
    bound = 1
    while bound < most and not is_enough(bound):
        bound *= 2
    return bisect_left(range(most), True, bound // 2 + 1, min(bound, most), key=is_enough)

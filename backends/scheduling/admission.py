"""Which rows may wait: those that can be answered on time, within their tenant's share of the queue.

Usage (by the serve loop, and by a simulator in virtual time; nothing here knows of threads or of a clock):
    rejection = admission.admit(jobs, now_us)     # None: they are in `admission.waiting`
    admission.drop(admission.infeasible(indices, now_us))
    jobs = admission.take_batch(indices, now_us); admission.batches.staged(BatchShape.of(jobs), stack)
    admission.batches.began(stack, shape, now_us); admission.batches.finished(now_us)

A row is predicted to be answered after

    margin * (busy + work + n * (constant + adapters))

where `busy` is what is left of the running and of the staged batch; `work` that of the rows that the policy would run
before it, whether they wait or are likely to arrive meanwhile, its own, and that of later rows which fill up its batch;
and n the batches that hold all these. The margin is at least the one that is set, and more where batches take longer
than predicted now and then (`estimator`); half of it is enough for rows that are yet to arrive, whose number evens out.

A row that would be late by that settles for the answer of an earlier layer, if its hPLM has one; and rows before it
settle, as few as put it in time (`settling`). So an overload costs depth before it costs answers.

First come, first served goes by fair shares: ahead is what starts earlier there, and a tenant that has requested more
than its share is overtaken by what others request, as much as lately. With other policies the rows of tenants within
their shares are ahead of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from backends.scheduling.accounts import Accounts, Predicted
from backends.scheduling.arrivals import Overtaking, TenantWork
from backends.scheduling.batch_clock import BatchClock
from backends.scheduling.batch_fill import BatchFill
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.order import NOTHING, FairOrder, Load, Order
from backends.scheduling.rejection import (
    RejectedError,
    late_on_arrival,
    predicted_late,
    queue_full,
    tenant_quota,
    tenant_share,
)
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.scheduling.settling import Settleable, Settling, Supposed
from backends.scheduling.tenants import NO_TENANT
from backends.scheduling.waiting_room import Bools, Float64, Indices, WaitingRoom
from backends.stack_key import StackKey

_PROBE_AFTER_US = 1_000_000
_HORIZON_US = 10_000_000
"""Recent arrivals say nothing about what arrives later."""


JobT = TypeVar("JobT", bound=Settleable)


class Admission(Generic[JobT]):
    """The waiting room, and the decision about what may enter it. Times are of whatever clock the caller goes by.

    Args:
        costs_of: A stack's costs; the same object every time.
        capacity: What a batch may hold.
        settings: Limits and shares.
        order: In which the policy runs jobs.
    """

    def __init__(
        self,
        costs_of: Callable[[StackKey], LiveCosts],
        capacity: Capacity,
        settings: AdmissionSettings,
        order: Order = FairOrder(),
    ) -> None:
        self.waiting: WaitingRoom[JobT] = WaitingRoom()
        """Read by everyone, changed here only."""
        self.batches = BatchClock(costs_of)
        """Told by the caller of each batch."""
        self.costs_of = costs_of
        self._settings = settings
        self._order = order
        self.fill = BatchFill(capacity)
        self.accounts: Accounts[JobT] = Accounts(costs_of, self.fill, settings.shares)
        self.settling = Settling(self.waiting, self.accounts)
        self._overtaking = None if isinstance(order, FairOrder) else Overtaking(order, capacity)
        self._tenant_work = TenantWork()
        self._stacks: tuple[StackKey, ...] = ()

    def serves(self, stack: StackKey) -> None:
        """Count a stack among those that a row may run on, whether it has run or not; from any thread."""
        self._stacks = (*self._stacks, stack)

    def no_longer_serves(self, stack: StackKey) -> None:
        self._stacks = tuple(other for other in self._stacks if other != stack)

    # --- entering ---

    def admit(self, jobs: Sequence[JobT], now_us: int) -> RejectedError | None:
        """Queue the rows of one request, all or none; returns why not."""
        if len(self.waiting) + len(jobs) > self._settings.max_waiting:
            return queue_full(len(self.waiting))
        is_idle = not self._is_busy
        if is_idle and self._overtaking is not None:
            self._overtaking.restart(now_us)
        within_share: dict[JobT, bool] = {}
        """Of the rows that have entered."""
        try:
            for job in jobs:
                is_within = self._is_within_share(job.tenant, now_us)
                predicts = self._settings.predicts and not (is_idle and self._may_probe(job.root, now_us))
                rejection = self._rejection(job, is_within, predicts, now_us)
                if rejection is not None:
                    self.settling.take_back()
                    return rejection
                self._enter(job, is_within)
                within_share[job] = is_within
        finally:
            if 0 < len(within_share) < len(jobs):
                self.drop([index for index, job in enumerate(self.waiting) if job in within_share])
            self.settling.keep()
        for job, is_within in within_share.items():
            if self._overtaking is None:
                self._tenant_work.add(job.tenant, self.accounts.charge_of(job).us, now_us)
            else:
                self._overtaking.add(job, Load.of(job, self.costs_of(job.root).model), is_within, now_us)
        return None

    def readmit(self, jobs: Sequence[JobT], now_us: int) -> None:
        """Queue jobs that the stage before admitted: charged to their tenants, and never rejected."""
        for job in jobs:
            self._enter(job, self._is_within_share(job.tenant, now_us))

    def put_back(self, jobs: Sequence[JobT], now_us: int) -> None:
        """Queue jobs in front that were taken, in their order; what they cost was charged when they were admitted."""
        for job in reversed(jobs):
            is_within = self._is_within_share(job.tenant, now_us)
            self.accounts.put_back(job)
            self.waiting.put_back(job, is_within)

    # --- leaving ---

    def take_batch(self, indices: Sequence[int], now_us: int) -> list[JobT]:
        """Remove the jobs of a batch that is being staged; their tenants pay."""
        self.fill.note_fullness(self.waiting, indices)
        self.batches.taken(now_us)
        self.accounts.serve([self.waiting[index] for index in indices])
        jobs = self.waiting.take_batch(indices)  # last: should anything fail, they still wait
        self.accounts.shares.catch_up(float(self.waiting.start_us[0]) if self.waiting else None)
        return jobs

    def drop(self, indices: Sequence[int] | Indices) -> list[JobT]:
        """Remove jobs that will not run; their tenants do not pay."""
        for job in [self.waiting[index] for index in indices]:
            self.accounts.drop(job)
        return self.waiting.take(indices)  # last: should anything fail, they still wait

    def close(self) -> list[JobT]:
        """Remove all jobs, in whatever state the accounts are."""
        return self.waiting.take_all()

    def drop_late(self, now_us: int) -> list[JobT]:
        """Remove the jobs whose deadline has passed."""
        return self.drop(np.flatnonzero(self.waiting.deadline_us <= now_us))

    def infeasible(self, indices: Sequence[int], now_us: int) -> list[int]:
        """Return the jobs that a batch staged now would answer too late; none where nothing runs.

        Computed, they would only make those behind them late too. An idle engine runs whatever waits, or a model that
        predicts too much could never be corrected. Jobs that would be late settle first, where they can.
        """
        if not self.batches.is_running or not self._settings.predicts or not len(indices):
            return []
        late = self._late(indices, now_us)
        for index in late:
            self.settling.settle(index)
        return self._late(indices, now_us) if late else late

    def _late(self, indices: Sequence[int], now_us: int) -> list[int]:
        """Return the jobs that a batch of all these, staged now, would answer too late.

        A row that settles may be answered sooner than its batch ends, but not where shares of it run one after another.
        """
        jobs = [self.waiting[index] for index in indices]
        costs = self.costs_of(jobs[0].root)
        batch_us = (1 + costs.tail) * costs.predict_us(BatchShape.of(jobs))
        late = self.waiting.deadline_us[indices] < now_us + self.batches.busy_us(now_us) + batch_us
        return [index for index, is_late in zip(indices, late.tolist(), strict=True) if is_late]

    # --- predicting ---

    def finish_in_us(
        self, job: Predicted, now_us: int, within_share: bool = True, supposed: Supposed | None = None
    ) -> float:
        """Predict how long it takes until a job that arrives now would be answered, or if rows settled as supposed."""
        within_share = within_share or self.is_fair
        depths, less_us = supposed or (self.waiting.depth, 0.0)
        costs, start_us = self.costs_of(job.root), self.accounts.shares.start_us(job.tenant, less_us)
        is_ahead = self._is_ahead(job, start_us, within_share)
        waiting = self._load_of(is_ahead, depths)
        until = waiting + Load.of(job, costs.model)
        overtaking = self._overtaking_load(job, until, within_share, now_us)
        num_stacks = self.waiting.count_stacks(is_ahead, job.root)
        behind_us = 0.0 if is_ahead.all() else self._load_of(~is_ahead, depths).work_us
        in_us = self.fill.batches_us(until + overtaking, num_stacks, behind_us, costs.model)
        tail_us = costs.tail * in_us / max(1.0, self.fill.batches(until + overtaking))
        if self.is_fair:
            in_us = self._overtaken_us(job.tenant, in_us, less_us, now_us)
        in_us += tail_us
        margin = self.margin(costs)
        return margin * (self.batches.busy_us(now_us) + in_us) - (margin - 1.0) / 2 * overtaking.work_us

    def margin(self, costs: LiveCosts) -> float:
        """What predictions are multiplied by that are to hold."""
        return max(1.0 + self._settings.margin_percent / 100.0, costs.safety)

    @property
    def predicts(self) -> bool:
        """Whether rows are rejected because they would be late."""
        return self._settings.predicts

    @property
    def fastest_stack(self) -> StackKey | None:
        """The stack that answers a short row first, of those that are served, whether they have run or not."""
        alone = BatchShape(1, 8, 64, 1)
        return min(self._stacks, key=lambda key: self.costs_of(key).predict_us(alone), default=None)

    @property
    def goes_by_length(self) -> bool:
        return self._order.goes_by_length

    @property
    def is_fair(self) -> bool:
        """Whether the order itself shares fairly; with other orders jobs within their shares go first."""
        return self._overtaking is None

    def work_us(self, stack: StackKey, lengths: Sequence[int]) -> list[float]:
        """Predict what rows delay those behind them: their own work, and their parts of what full batches take."""
        costs = self.costs_of(stack)
        margin, model = self.margin(costs), costs.model
        return [margin * self.fill.row_us(tokens, model.row_us(tokens), model) for tokens in lengths]

    def beyond_share(self, now_us: int, most: int) -> list[str]:
        """The tenants that have requested most beyond their shares; a row of theirs would stand behind others."""
        accounts = self.accounts
        return accounts.shares.furthest_ahead(most) if self.is_fair else accounts.buckets.most_beyond(now_us, most)

    def _rejection(self, job: JobT, is_within: bool, predicts: bool, now_us: int) -> RejectedError | None:
        num_waiting = self.accounts.shares.rows_of(job.tenant)
        if num_waiting >= self._settings.quota_of(job.tenant):
            return tenant_quota(num_waiting)
        is_half_full = 2 * len(self.waiting) > self._settings.max_waiting
        if is_half_full and num_waiting >= self.accounts.shares.share_of(job.tenant) * self._settings.max_waiting:
            return tenant_share(num_waiting)
        if job.deadline_us is None:
            return None
        if (deadline_in_us := job.deadline_us - now_us) <= 0:
            return late_on_arrival()
        if not predicts:
            return None
        finish_in_us = self.finish_in_us(job, now_us, is_within)
        if finish_in_us > deadline_in_us and job.settle():
            finish_in_us = self.finish_in_us(job, now_us, is_within)
        if finish_in_us > deadline_in_us and not self._settle_ahead(job, deadline_in_us, is_within, now_us):
            return predicted_late(finish_in_us, deadline_in_us)
        return None

    def _settle_ahead(self, job: JobT, deadline_in_us: int, is_within: bool, now_us: int) -> bool:
        """Have rows settle that run before a job, as few as put it in time; returns whether any do.

        For a tenant that has requested more than its share only its own do.
        """
        shares = self.accounts.shares
        is_ahead = self._is_ahead(job, shares.start_us(job.tenant), is_within)
        candidates = self.settling.candidates(job, is_ahead)
        if not is_within or (self.is_fair and shares.is_beyond(job.tenant)):
            candidates = candidates.own

        def is_enough(count: int) -> bool:
            supposed = self.settling.if_first(candidates, count)
            return self.finish_in_us(job, now_us, is_within, supposed) <= deadline_in_us

        return self.settling.settle_fewest(candidates, is_enough)

    @property
    def _is_busy(self) -> bool:
        return self.batches.is_busy or len(self.waiting) > 0

    def _may_probe(self, stack: StackKey, now_us: int) -> bool:
        """Whether a request that meets an idle engine, and delays no other, is of a stack that has not run for a while.

        It is admitted whatever is predicted: a model that predicts too much could never be corrected otherwise.
        """
        finished_us = self.batches.finished_of.get(stack)
        return finished_us is None or now_us - finished_us >= _PROBE_AFTER_US

    def _is_within_share(self, tenant: str, now_us: int) -> bool:
        # The watchdog's canary is no tenant, and takes no share of one.
        return self.is_fair or tenant == NO_TENANT or self.accounts.buckets.allows(tenant, now_us)

    def _is_ahead(self, job: Predicted, start_us: float, within_share: bool) -> Bools:
        """Tell which rows that wait the policy would run before a job."""
        ahead = self._order.ahead(self.waiting, job, start_us)
        if self.is_fair:
            return ahead
        return ahead & self.waiting.within_share if within_share else ahead | self.waiting.within_share

    def _load_of(self, chosen: Bools, depths: Float64) -> Load:
        """Add up rows that wait, with what they would take now: it may not be what it was when they came."""
        load = NOTHING
        for stack, rows, tokens, passed, squared in self.waiting.lengths_by_stack(chosen, depths):
            load += Load(rows, tokens, self.costs_of(stack).model.rows_us(rows, passed, squared))
        return load

    def _overtaken_us(self, tenant: str, in_us: float, less_us: float, now_us: int) -> float:
        """Return when work of `in_us` is done that arrivals of other tenants overtake, where the order is fair.

        They come as they came lately; but however many come, no more overtake it than their shares have room for.
        """
        room_us = self.accounts.shares.room_us(tenant, less_us)
        if not room_us:
            return in_us
        left = 1.0 - self._tenant_work.of_others(tenant, now_us)
        return min(in_us + room_us, in_us / left) if left > 0 else in_us + room_us

    def _overtaking_load(self, job: Predicted, until: Load, within_share: bool, now_us: int) -> Load:
        """What is likely to arrive, and to run before the job, until it is taken; nothing where the order is fair.

        It is taken next if it is sure of room in the next batch. Otherwise it may be overtaken until two batches before
        its deadline; with less left, it is taken next or never.
        """
        if job.deadline_us is None or self._overtaking is None:
            return NOTHING
        soon = self._overtaking.of(job, self.waiting, within_share, self.batches.busy_us(now_us), now_us)
        if self.fill.batches(until + soon) <= self._overtaking.order.sure_part:
            return soon
        latest_us = max(0.0, job.deadline_us - now_us - 2 * self.batches.last_us)
        return self._overtaking.of(job, self.waiting, within_share, min(latest_us, _HORIZON_US), now_us)

    def _enter(self, job: JobT, is_within: bool) -> None:
        start_us = self.accounts.shares.start_us(job.tenant)
        self.accounts.enter(job, pays_bucket=is_within)
        self.waiting.add([job], start_us, is_within)

"""Who may wait: refused at once is what cannot be answered in time, or is beyond its tenant's share of the queue.

Usage (of the serve loop, and of a simulator in virtual time; nothing here knows of threads or of a clock):
    refusal = admission.admit(jobs, now_us)     # None: they wait, at the places `start_us`
    admission.give_up(admission.hopeless(chosen, now_us))
    admission.take(chosen, now_us); admission.staged(BatchShape.of(chosen), "mini")
    admission.began("mini", shape, now_us); admission.finished(now_us)
    admission.withdraw(cancelled)

A prediction is what is left of the running batch, the batch that is staged, and the batches that hold what is ahead and
the job itself, filled up with what waits or is likely to come meanwhile. Ahead is what the policy would run before: of
those that wait, and of those that are likely to come until it is too late, if as many are let in as of late (`order`).
First come, first served goes by fair shares: ahead is who starts earlier there. With other policies whoever is within
its share when it arrives is ahead of all that are not (`allowance`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from backends.scheduling.admission_settings import AdmissionSettings
from backends.scheduling.allowance import Allowance
from backends.scheduling.backlog import NOTHING, Backlog, Load
from backends.scheduling.caution import Caution
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.crowd import Crowd
from backends.scheduling.fair_share import FairShare
from backends.scheduling.inflow import Inflow
from backends.scheduling.live_costs import LiveCosts
from backends.scheduling.order import FairOrder, Order
from backends.scheduling.policy import Capacity, Waiting
from backends.scheduling.refusal import Refusal, RefusedError, late_on_arrival, predicted_late
from backends.stack_key import StackKey

_PROBE_AFTER_US = 1_000_000


@dataclass
class BatchFigures:
    """What all batches so far were predicted to take, would be by costs that nothing corrects, and took."""

    batches: int = 0
    predicted_us: float = 0.0
    uncorrected_us: float = 0.0
    measured_us: float = 0.0

    def note(self, predicted_us: float, uncorrected_us: float, measured_us: float) -> None:
        self.batches += 1
        self.predicted_us += predicted_us
        self.uncorrected_us += uncorrected_us
        self.measured_us += measured_us


class Arriving(Waiting, Protocol):
    """A job as admission sees it; equal to no other job, and hashable."""

    @property
    def tenant(self) -> str: ...


ArrivingT = TypeVar("ArrivingT", bound=Arriving)


@dataclass(frozen=True, slots=True)
class _Place:
    start_us: float
    within_share: bool
    start_bucket: int
    order_bucket: int
    load: Load
    charge_us: float
    """On the account of the tenant: with the row's part of what a full batch takes anyway."""


@dataclass(frozen=True, slots=True)
class _Running:
    root: StackKey
    shape: BatchShape
    taken_us: int
    predicted_us: float
    ends_us: float


class _Class:
    """Those within their shares, or those beyond: who waits, by the order of the policy, and who is let in."""

    def __init__(self, order: Order) -> None:
        self.waiting = Backlog(order.resolution)
        self.inflow = Inflow(order.num_kinds)


class Admission:
    """Sums over what waits, and the decision about what comes. Times are of whatever clock the caller goes by.

    Args:
        costs_of: A root's costs; the same object every time.
        capacity: What a batch may hold.
        settings: Limits and shares.
        order: In which the policy runs them.
    """

    def __init__(
        self,
        costs_of: Callable[[StackKey], LiveCosts],
        capacity: Capacity,
        settings: AdmissionSettings,
        order: Order = FairOrder(),
    ) -> None:
        self._costs_of = costs_of
        self._capacity = capacity
        self._settings = settings
        self._least_margin = 1.0 + settings.margin_percent / 100.0
        self._caution = Caution(self._least_margin)
        self._crowd = Crowd()
        self._shares = FairShare(settings.shares)
        self._order = order
        self._by_start = Backlog(FairOrder.resolution)
        self._allowance = Allowance(settings.shares)
        self._within = _Class(order)
        self._beyond = _Class(order)
        self._places: dict[Arriving, _Place] = {}
        self._adapters: Counter[int] = Counter()
        """Rows that wait, by hPLM version."""
        self._staged_us = 0.0
        self._running: _Running | None = None
        self._taken_us = 0
        self._finished_us: int | None = None
        self.roots: tuple[StackKey, ...] = ()
        """Those that are served, whether they have run or not."""
        self._last_batch_us = 0.0
        self.figures = BatchFigures()

    def serves(self, root: StackKey) -> None:
        """From now on also this one, and what a row takes at least is what it takes of the fastest; from any thread."""
        self.roots = (*self.roots, root)

    def no_longer_serves(self, root: StackKey) -> None:
        self.roots = tuple(other for other in self.roots if other != root)

    @property
    def num_waiting(self) -> int:
        return len(self._by_start)

    # --- arriving and leaving ---

    def admit(self, jobs: Sequence[Arriving], now_us: int) -> RefusedError | None:
        """The rows of one request: all of them wait from now on, or none and the reason is told or raised."""
        if self._running is not None:
            self._crowd.come(len(jobs), self._running.shape.rows, self.num_waiting)
            self._expect_crowd(now_us)
        if self.num_waiting + len(jobs) > self._settings.max_waiting:
            return RefusedError(Refusal.QUEUE_FULL, f"the queue is full: {self.num_waiting} rows wait")
        if not self._is_busy:
            self._within.inflow.begin(now_us)
            self._beyond.inflow.begin(now_us)
            self._caution.rest()
        predicts = self._settings.predicts and not self._may_probe(now_us)
        with ExitStack() as undo:
            for job in jobs:
                within_share = self._order.is_fair or self._allowance.allows(job.tenant, now_us)
                refusal = self._refusal(job, within_share, predicts, now_us)
                if refusal is not None:
                    return refusal
                self._enter(job, self._shares.start_us(job.tenant), within_share)
                undo.callback(self.withdraw, (job,))
            undo.pop_all()
        for job in jobs:
            place = self._places[job]
            self._class_of(place).inflow.add(self._order.kind(job, now_us), place.load, now_us)
        return None

    def start_us(self, job: Arriving) -> float:
        """The place of a job that waits; whoever takes jobs in the order of their places shares fairly."""
        return self._places[job].start_us

    def is_within_share(self, job: Arriving) -> bool:
        """Of a job that waits: whether policies that go by something else than shares are to choose it first."""
        return self._places[job].within_share

    def beyond_share(self, now_us: int, most: int) -> list[str]:
        """The tenants that have asked for most beyond their shares; a row of theirs would stand behind others."""
        if self._order.is_fair:
            return self._shares.furthest_ahead(most)
        return self._allowance.most_beyond(now_us, most)

    def withdraw(self, jobs: Sequence[Arriving]) -> None:
        """They wait no longer, and will not run."""
        for job in jobs:
            place = self._leave(job)
            self._shares.give_back(job.tenant, place.charge_us)
            if place.within_share:
                self._allowance.use(job.tenant, -place.charge_us)

    def give_up(self, jobs: Sequence[Arriving]) -> None:
        """They wait no longer: they are late, or would be, although they were let in."""
        self._caution.broken(len(jobs))
        self.withdraw(jobs)

    def take(self, jobs: Sequence[Arriving], now_us: int) -> None:
        """They wait no longer: they are being staged."""
        self._taken_us = now_us
        self._shares.serve(sum(self._places[job].charge_us for job in jobs))
        for job in jobs:
            self._leave(job)
        self._shares.catch_up(self._by_start.first_place)

    def put_back(self, jobs: Sequence[Arriving]) -> None:
        """They were taken, and wait again, in front; what they cost was charged when they were admitted."""
        for job in jobs:
            self._enter(job, self._shares.now_us, within_share=True)
            charge_us = self._places[job].charge_us
            self._shares.give_back(job.tenant, charge_us)
            self._allowance.use(job.tenant, -charge_us)

    def readmit(self, jobs: Sequence[Arriving], now_us: int) -> None:
        """Jobs that go on in another stack wait again: charged to their tenants, and never rejected."""
        for job in jobs:
            within_share = self._order.is_fair or self._allowance.allows(job.tenant, now_us)
            self._enter(job, self._shares.start_us(job.tenant), within_share)

    def charge(self, tenants: Sequence[str], root: StackKey, shapes: Sequence[BatchShape]) -> None:
        """Put batches on the accounts of the tenants, in equal parts, whose rows made them necessary."""
        cost_us = sum(map(self._costs_of(root).predict_us, shapes)) / len(tenants)
        for tenant in tenants:
            self._shares.give_back(tenant, -cost_us)
            self._allowance.use(tenant, cost_us)

    # --- batches ---

    def hopeless(self, jobs: Sequence[ArrivingT], now_us: int) -> list[ArrivingT]:
        """Of a batch that would be staged now, those that it would answer too late; nobody where nothing runs.

        Computed, they would only make those behind them late too. An idle engine runs whatever waits, or a model that
        predicts too much could never be corrected.
        """
        if self._running is None or not self._settings.predicts:
            return []
        batch_us = self._costs_of(jobs[0].root).predict_us(BatchShape.of(jobs))
        done_us = now_us + (1.0 + self._least_margin) / 2 * (self._busy_us(now_us) + batch_us)
        return [job for job in jobs if job.deadline_us is not None and job.deadline_us < done_us]

    def left_us(self, now_us: int) -> float:
        """Of the batch that runs, as predicted; 0 where there is none, and of one that is overdue."""
        return 0.0 if self._running is None else max(0.0, self._running.ends_us - now_us)

    def staged(self, shape: BatchShape | None, root: StackKey | None) -> None:
        """This batch runs next; None where nothing came of staging."""
        self._staged_us = 0.0 if shape is None or root is None else self._costs_of(root).predict_us(shape)

    def began(self, root: StackKey, shape: BatchShape, now_us: int) -> None:
        """What was staged runs."""
        self._staged_us = 0.0
        predicted_us = self._last_batch_us = self._costs_of(root).predict_us(shape)
        self._running = _Running(root, shape, self._taken_us, predicted_us, now_us + predicted_us)

    def finished(self, now_us: int, has_run: bool = True, late: int = 0) -> None:
        """What was running has run, or nothing was left of it to run; so many of its rows are too late by now.

        What a batch took is counted from the end of the one before, or from when it was taken if that was later: with
        all that is not hidden behind other batches.
        """
        running, self._running = self._running, None
        if running is None:
            return
        before_us, self._finished_us = self._finished_us, now_us
        self._crowd.end_batch(running.shape.rows, self.num_waiting)
        self._expect_crowd(now_us)
        self._caution.broken(late)
        if has_run:
            measured_us = now_us - max(running.taken_us, before_us or running.taken_us)
            costs = self._costs_of(running.root)
            self.figures.note(running.predicted_us, costs.uncorrected_us(running.shape), measured_us)
            self._caution.kept(running.shape.rows - late)
            costs.observe(running.shape, measured_us)

    def _expect_crowd(self, now_us: int) -> None:
        if self._crowd.is_here:
            self._caution.crowd(now_us)
        for root in self.roots:
            self._costs_of(root).expect(self._crowd.is_here)

    # --- predicting ---

    def finish_in_us(self, job: Arriving, now_us: int, within_share: bool = True) -> float:
        """How long until a job that arrives now would be answered, overtaken by all that are likely to."""
        model, start_us = self._costs_of(job.root).model, self._shares.start_us(job.tenant)
        place = self._order.place(job, start_us)
        within_share = within_share or self._order.is_fair
        if within_share:
            waiting = self._within.waiting.up_to(place)
        else:
            waiting = self._within.waiting.all + self._beyond.waiting.up_to(place)
        overtaking = self._likely_overtaking(job, waiting + _load_of(job, model), within_share, now_us)
        finish_in_us = self._finish_in_us(job, model, waiting, overtaking, now_us)
        if self._order.is_fair:
            finish_in_us = max(finish_in_us, self._fair_finish_in_us(job, start_us, now_us))
        return self.margin * finish_in_us

    @property
    def predicts(self) -> bool:
        """Whether anybody is refused for being late."""
        return self._settings.predicts

    @property
    def margin(self) -> float:
        """What predictions are multiplied by: at least what the settings say."""
        return self._caution.factor

    @property
    def without_half_of_margin(self) -> float:
        """What to multiply by what is, or will be, multiplied by the margin and needs half of it."""
        return (1.0 + self.margin) / (2.0 * self.margin)

    def _refusal(self, job: Arriving, within_share: bool, predicts: bool, now_us: int) -> RefusedError | None:
        waiting = self._shares.rows_of(job.tenant)
        if waiting >= self._settings.quota:
            return RefusedError(Refusal.TENANT_QUOTA, f"{waiting} rows of this tenant wait, as many as may")
        if self._is_crowded and waiting >= self._shares.share_of(job.tenant) * self._settings.max_waiting:
            return RefusedError(
                Refusal.TENANT_SHARE,
                f"{waiting} rows of this tenant wait, its share of a queue that others wait in too",
            )
        if job.deadline_us is None:
            return None
        if (deadline_in_us := job.deadline_us - now_us) <= 0:
            return late_on_arrival()
        if not predicts:
            return None
        finish_in_us = self.finish_in_us(job, now_us, within_share)
        return predicted_late(finish_in_us, deadline_in_us) if finish_in_us > deadline_in_us else None

    @property
    def _is_crowded(self) -> bool:
        return 2 * self.num_waiting > self._settings.max_waiting

    def _may_probe(self, now_us: int) -> bool:
        """A request that meets an idle engine after a while costs nobody anything.

        It is let in whatever is predicted: a model that predicts too much could never be corrected otherwise.
        """
        if self._is_busy:
            return False
        return self._finished_us is None or now_us - self._finished_us >= _PROBE_AFTER_US

    def _class_of(self, place: _Place) -> _Class:
        return self._within if place.within_share else self._beyond

    def _likely_overtaking(self, job: Arriving, until: Load, within_share: bool, now_us: int) -> Load:
        """By the time that the job is taken: soon, if the next batch has room up to it, or at the latest."""
        # Over a while chance evens out a part of what comes: half of the margin is enough for it.
        in_the_end = self._overtaking(job, within_share, self._until_taken_us(job, now_us), now_us)
        in_the_end = in_the_end.times(self.without_half_of_margin)
        if not self._order.runs_when_due or not in_the_end.rows:
            return in_the_end
        soon = self._overtaking(job, within_share, self._busy_us(now_us), now_us).times(self.margin)
        has_room_soon = self._filled(until + soon) <= 1.0
        return soon if has_room_soon and soon.rows < in_the_end.rows else in_the_end

    def _until_taken_us(self, job: Arriving, now_us: int) -> float:
        """Whoever has less left than two batches is taken at once or never: nobody overtakes it."""
        return 0.0 if job.deadline_us is None else max(0.0, job.deadline_us - now_us - 2 * self._last_batch_us)

    def _overtaking(self, job: Arriving, within_share: bool, in_us: float, now_us: int) -> Load:
        """Who is likely to come in so long, and to run before the job."""
        if job.deadline_us is None:
            return NOTHING
        by_kind_us = self._order.overtaking_us(job, now_us, in_us)
        if within_share:
            return self._within.inflow.during(by_kind_us, now_us)
        all_within = self._within.inflow.all_during(in_us, now_us)
        return all_within + self._beyond.inflow.during(by_kind_us, now_us)

    @property
    def _is_busy(self) -> bool:
        return bool(self._running is not None or self._staged_us or self.num_waiting)

    def _filled(self, load: Load) -> float:
        """Batches that it fills."""
        return max(load.rows / self._capacity.max_rows, load.tokens / self._capacity.max_tokens)

    def _finish_in_us(self, job: Arriving, model: CostModel, waiting: Load, overtaking: Load, now_us: int) -> float:
        ahead = waiting + overtaking
        until = ahead + _load_of(job, model)
        filled = self._filled(until)
        batches = math.ceil(filled)
        before_us = self._busy_us(now_us) + ahead.work_us * (batches - 1) / filled
        inflow_rate = self._within.inflow.rate(now_us) + self._beyond.inflow.rate(now_us)
        behind_us = self._by_start.work_us - waiting.work_us + before_us * inflow_rate
        follow_us = min(behind_us, until.work_us * (batches - filled) / filled)
        each_us = model.constant_us + model.per_adapter_us * self._distinct(until.rows / batches)
        return self._busy_us(now_us) + until.work_us + follow_us + batches * each_us

    def _fair_finish_in_us(self, job: Arriving, start_us: float, now_us: int) -> float:
        """When the clock of fair shares gets there, if all who wait go on doing so.

        Until then others may come and start before this job.
        """
        ahead_us = start_us - self._shares.now_us
        if ahead_us <= 0:
            return 0.0
        return self._busy_us(now_us) + ahead_us * self._settings.shares.weight(job.tenant) / self._shares.share_of(
            job.tenant
        )

    def _busy_us(self, now_us: int) -> float:
        if self._running is None:
            return self._staged_us
        left_us = self._running.ends_us - now_us
        # What takes longer than predicted is likely to take a while yet.
        return self._staged_us + (left_us if left_us > 0 else -left_us / 2)

    def _distinct(self, rows: float) -> float:
        """Different hPLMs that so many rows are of, if all that wait are equally likely."""
        kinds = len(self._adapters)
        return max(1.0, kinds * (1.0 - math.exp(-rows / kinds))) if kinds else 1.0

    # --- sums ---

    def _enter(self, job: Arriving, start_us: float, within_share: bool) -> None:
        model = self._costs_of(job.root).model
        load = _load_of(job, model)
        start_bucket = self._by_start.bucket(start_us)
        order_bucket = self._within.waiting.bucket(self._order.place(job, start_us))
        charge_us = load.work_us + self._filled(load) * model.constant_us
        place = _Place(start_us, within_share, start_bucket, order_bucket, load, charge_us)
        self._places[job] = place
        self._by_start.add(start_bucket, load)
        self._class_of(place).waiting.add(order_bucket, load)
        if within_share:
            self._allowance.use(job.tenant, charge_us)
        self._shares.enter(job.tenant, place.charge_us)
        self._adapters[job.hplm_key] += 1

    def _leave(self, job: Arriving) -> _Place:
        place = self._places.pop(job)
        self._by_start.remove(place.start_bucket, place.load)
        self._class_of(place).waiting.remove(place.order_bucket, place.load)
        self._shares.leave(job.tenant)
        self._adapters[job.hplm_key] -= 1
        if not self._adapters[job.hplm_key]:
            del self._adapters[job.hplm_key]
        return place


def _load_of(job: Arriving, model: CostModel) -> Load:
    return Load(1.0, job.num_tokens, model.row_us(job.num_tokens))

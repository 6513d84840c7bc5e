"""The serve loop in virtual time: the same policies, the same admission, the same cost model, and no machine.

One batch runs; the next is staged as soon as it is full, otherwise when the machine becomes free. Who is late in the
queue, or would be in the batch that is staged while another runs, is refused, and so is who is late when its batch runs
and when that is done; a staged batch runs whole or, where all are late, not at all. At one moment those who come are
let in first, then the batch ends, then the next is chosen.

Events that move nothing are not played: time goes from batch to batch, and from one arrival to the next only while a
batch might be staged; from one passed deadline to the next only where the policy may choose otherwise for it. What
happened is kept in columns, and judged after the run, all requests at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from backends.scheduling.admission import Admission
from backends.scheduling.admission_settings import AdmissionSettings
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.live_costs import LiveCosts
from backends.scheduling.policy import Capacity, Policy
from backends.scheduling.refusal import Refusal
from builder.placement.simulated_job import ROOT, Inbox, SimulatedJob
from builder.placement.simulated_load import SimulatedLoad
from builder.placement.simulated_queue import SimulatedQueue
from builder.placement.simulation_log import Simulation, SimulationLog
from builder.progress import Report, Step

_BATCHES_PER_REPORT = 4_096


class Simulator:
    """One machine with one stack.

    Args:
        admission: Decides about what comes; without it whoever comes waits, as long as no more than `max_waiting` do.
    """

    def __init__(
        self,
        policy: Policy,
        cost_model: CostModel,
        capacity: Capacity = Capacity(),
        admission: AdmissionSettings | None = None,
        max_waiting: int = AdmissionSettings.max_waiting,
    ) -> None:
        self._policy = policy
        self._cost_model = cost_model
        self._capacity = capacity
        self._admission = admission
        self._max_waiting = max_waiting

    def run(self, load: SimulatedLoad, report: Report = lambda _: None) -> Simulation:
        """Play a load to its last answer."""
        queue = SimulatedQueue(self._policy, self._capacity)
        return _Run(load, queue, self._cost_model, self._new_admission(), self._max_waiting).play(report)

    def _new_admission(self) -> Admission | None:
        """Each load meets one that remembers no other."""
        if self._admission is None:
            return None
        costs = LiveCosts(self._cost_model)
        return Admission(lambda _: costs, self._capacity, self._admission, self._policy.order)


class _Run:
    """One load on its way through."""

    def __init__(
        self,
        load: SimulatedLoad,
        queue: SimulatedQueue,
        cost_model: CostModel,
        admission: Admission | None,
        max_waiting: int,
    ) -> None:
        self._load = load
        self._inbox = Inbox(load)
        self._queue = queue
        self._cost_model = cost_model
        self._admission = admission
        self._max_waiting = max_waiting
        self._log = SimulationLog()

    def play(self, report: Report) -> Simulation:
        now_us = 0
        while (first := self._first_batch(now_us)) is not None:
            now_us, jobs = first
            while jobs:
                now_us, jobs = self._run_batch(now_us, jobs)
                self._report(report, now_us)
        duration_s = round(self._load.duration_s)
        report(Step("simulate", duration_s, duration_s))
        return self._log.judged(self._load)

    def _report(self, report: Report, now_us: int) -> None:
        if self._log.num_batches % _BATCHES_PER_REPORT == 0:
            duration_s = round(self._load.duration_s)
            # The end is reported once, when the last answer is out.
            report(Step("simulate", min(now_us // 1_000_000, duration_s - 1), duration_s))

    # --- batches ---

    def _first_batch(self, now_us: int) -> tuple[int, list[SimulatedJob]] | None:
        """What an idle machine runs, and from when on; None when nobody comes any more."""
        while True:
            self._drop_late(now_us)
            if self._queue:
                return now_us, self._taken(self._queue.next_batch(now_us), now_us)
            if self._inbox.next_us == math.inf:
                return None
            now_us = int(self._inbox.next_us)
            self._let_in(now_us)

    def _run_batch(self, start_us: int, jobs: list[SimulatedJob]) -> tuple[int, list[SimulatedJob]]:
        """Play until the batch is done; then and with what the machine goes on, with nobody where none is staged."""
        shape = BatchShape.of(jobs)
        took_us = max(1, round(self._cost_model.predict_us(shape)))
        end_us = start_us + took_us
        self._log.batch(start_us, end_us, shape, jobs)
        if self._admission is not None:
            self._admission.began(ROOT, shape, start_us)
        staged = self._staged_until(start_us, end_us)
        self._let_in(end_us)
        if self._admission is not None:
            self._admission.finished(end_us, late=sum(job.is_late(end_us) for job in jobs))
        return end_us, self._in_time(staged, end_us)

    def _staged_until(self, start_us: int, end_us: int) -> list[SimulatedJob]:
        """The batch that became full while another ran, if one did."""
        staged = self._full_batch(start_us)
        while not staged and (next_us := min(self._inbox.next_us, self._queue.next_change_us)) < end_us:
            now_us = int(next_us)
            self._let_in(now_us)
            staged = self._full_batch(now_us)
        return staged

    def _full_batch(self, now_us: int) -> list[SimulatedJob]:
        self._drop_late(now_us)
        jobs = self._queue.full_batch(now_us, self._shed)
        return self._taken(jobs, now_us) if jobs else []

    def _shed(self, jobs: Sequence[SimulatedJob], now_us: int) -> Sequence[SimulatedJob]:
        if self._admission is None:
            return ()
        late = self._admission.hopeless(jobs, now_us)
        self._admission.give_up(late)
        return late

    def _taken(self, jobs: list[SimulatedJob], now_us: int) -> list[SimulatedJob]:
        if self._admission is not None:
            self._admission.take(jobs, now_us)
            self._admission.staged(BatchShape.of(jobs), ROOT)
        return jobs

    def _in_time(self, staged: list[SimulatedJob], now_us: int) -> list[SimulatedJob]:
        """The staged batch, whole, unless nobody in it is in time any more."""
        if not staged or _any_in_time(staged, now_us):
            return staged
        if self._admission is not None:
            self._admission.began(ROOT, BatchShape.of(staged), now_us)
            self._admission.finished(now_us, has_run=False, late=len(staged))
        return []

    # --- the queue ---

    def _drop_late(self, now_us: int) -> None:
        late = self._queue.drop_late(now_us)
        if late and self._admission is not None:
            self._admission.give_up(late)

    def _let_in(self, until_us: int) -> None:
        jobs = self._inbox.take_until(until_us)
        if self._admission is not None:
            for job in jobs:
                self._ask(self._admission, job)
        elif len(self._queue) + len(jobs) <= self._max_waiting:
            self._queue.add(jobs)
        else:
            for job in jobs:
                self._add_if_not_full(job)

    def _ask(self, admission: Admission, job: SimulatedJob) -> None:
        """Whoever is late by now has left the queue."""
        self._drop_late(job.arrived_us)
        refused = admission.admit((job,), job.arrived_us)
        if refused is None:
            self._queue.add((job,), admission.start_us(job), admission.is_within_share(job))
        else:
            self._log.refuse(job, refused.reason)

    def _add_if_not_full(self, job: SimulatedJob) -> None:
        self._drop_late(job.arrived_us)
        if len(self._queue) < self._max_waiting:
            self._queue.add((job,))
        else:
            self._log.refuse(job, Refusal.QUEUE_FULL)


def _any_in_time(jobs: Sequence[SimulatedJob], now_us: int) -> bool:
    return any(not job.is_late(now_us) for job in jobs)

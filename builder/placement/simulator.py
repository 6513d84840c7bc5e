"""The serve loop in virtual time: the same policies, admission, forecast and cost model, and no machine.

One batch runs; the next is staged as soon as it is full, otherwise when the machine becomes free. Rejected are rows
that the forecast or admission predicts to be late, rows that become late in the queue or infeasible in a batch that is
staged while another runs, and rows that are late when their batch runs or is done; a staged batch runs whole or, where
all its rows are late, not at all. With exits, rows that are sure enough are answered once their batch has passed the
lower part of the layers, and rows settle as in the engine. With students, the engine's own class chooses how many
answer a batch when it starts. At one moment rows arrive first, then the batch ends, then the next is chosen.

Events that move nothing are not played: time goes from batch to batch, and from one arrival to the next only while a
batch might be staged; from one passed deadline to the next only where the policy may choose otherwise for it. What
happened is kept in columns, and judged after the run, all requests at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from backends.errors import InvalidArgumentError
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.depth_choice import DepthChoice
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.policies import Policy
from backends.scheduling.rejection import Rejection
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.scheduling.wait_forecast import FRESH_US, WaitForecast
from builder.placement.simulated_exits import Answers, Exits
from builder.placement.simulated_job import ROOT, Inbox, SimulatedJob
from builder.placement.simulated_load import SimulatedLoad
from builder.placement.simulated_queue import SimulatedQueue
from builder.placement.simulated_students import STUDENT_STACK, Students
from builder.placement.simulation_log import Simulation, SimulationLog
from builder.progress import Report, Step

_BATCHES_PER_REPORT = 4_096
_FORECAST_EVERY_US = 100_000
"""As the serve loop."""


class Simulator:
    """One machine with one stack.

    Args:
        policy: Chooses each batch.
        cost_model: What admission knows, and what batches take unless `measured_us` says otherwise.
        admission: Decides about arriving rows; without it all wait, as long as no more than `max_waiting` do.
        measured_us: What a batch really takes.
        exits: Where rows leave early, and how many; without it all pass all layers.
        students: What answers in place of the layers; needs admission, which knows what waits.

    Raises:
        InvalidArgumentError: Students without admission, or with exits.
    """

    def __init__(
        self,
        policy: Policy,
        cost_model: CostModel,
        capacity: Capacity = Capacity(),
        admission: AdmissionSettings | None = None,
        max_waiting: int = AdmissionSettings.max_waiting,
        measured_us: Callable[[BatchShape], float] | None = None,
        exits: Exits | None = None,
        students: Students | None = None,
    ) -> None:
        if students is not None and (admission is None or exits is not None):
            raise InvalidArgumentError("students need admission, and have no exits")
        self._policy = policy
        self._cost_model = cost_model
        self._capacity = capacity
        self._admission = admission
        self._max_waiting = max_waiting
        self._measured_us = measured_us or cost_model.predict_us
        self._exits = exits
        self._students = students

    def run(self, load: SimulatedLoad, report: Report = lambda _: None) -> Simulation:
        """Play a load to its last answer."""
        admission = self._new_admission()
        queue = SimulatedQueue(self._policy, self._capacity, admission)
        answering = _Answering(self._exits, self._students)
        return _Run(load, queue, self._measured_us, admission, self._max_waiting, answering).play(report)

    def _new_admission(self) -> Admission[SimulatedJob] | None:
        """Each load meets one that remembers no other."""
        if self._admission is None:
            return None
        costs = LiveCosts(self._cost_model)
        admission: Admission[SimulatedJob] = Admission(
            lambda _: costs, self._capacity, self._admission, self._policy.order
        )
        admission.serves(ROOT if self._students is None else STUDENT_STACK)
        return admission


@dataclass(frozen=True)
class _Answering:
    """What answers rows besides all layers, if something does."""

    exits: Exits | None
    students: Students | None

    def inbox(self, load: SimulatedLoad) -> Inbox:
        if self.students is not None:
            return Inbox(load, np.zeros(len(load), bool), self.students.depths, STUDENT_STACK)
        if self.exits is not None:
            return Inbox(load, self.exits.leaving(len(load)), self.exits.depths)
        return Inbox(load, np.zeros(len(load), bool))

    def num_students(self, jobs: Sequence[SimulatedJob]) -> int:
        """Return how many students answer a batch."""
        return 0 if self.students is None else round(max(job.depth for job in jobs) / self.students.depth)


class _Run:
    """One load on its way through."""

    def __init__(
        self,
        load: SimulatedLoad,
        queue: SimulatedQueue,
        measured_us: Callable[[BatchShape], float],
        admission: Admission[SimulatedJob] | None,
        max_waiting: int,
        answering: _Answering,
    ) -> None:
        self._load = load
        self._answering = answering
        self._inbox = answering.inbox(load)
        self._queue = queue
        self._measured_us = measured_us
        self._admission = admission
        self._max_waiting = max_waiting
        self._depths = None if admission is None else DepthChoice(admission)
        self._forecast: WaitForecast | None = None
        self._forecast_us = 0
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
        """What an idle machine runs, and from when on; None when no row arrives any more."""
        while True:
            self._queue.drop_late(now_us)
            if self._queue:
                return now_us, self._queue.next_batch(now_us)
            if self._inbox.next_us == math.inf:
                return None
            now_us = int(self._inbox.next_us)
            self._receive(now_us)

    def _run_batch(self, start_us: int, jobs: list[SimulatedJob]) -> tuple[int, list[SimulatedJob]]:
        """Play until the batch is done; returns when, and the staged batch, with no row where none is staged."""
        if self._answering.students is not None and self._depths is not None:
            self._depths.choose(STUDENT_STACK, jobs, self._answering.students.choices, start_us)
        if self._admission is not None:
            self._admission.batches.began(jobs[0].root, BatchShape.of(jobs), start_us)
        shape = BatchShape.of(jobs, [job.passed for job in jobs])
        end_us = start_us + self._takes_us(shape)
        answers, num_students = self._answers(jobs, start_us, end_us), self._answering.num_students(jobs)
        self._log.batch(start_us, end_us, shape, jobs, answers, num_students)
        staged = self._staged_until(start_us, end_us)
        self._receive(end_us)
        if self._admission is not None:
            for job in jobs:
                self._admission.accounts.spend_depth(job, job.passed)
            self._admission.batches.finished(end_us, passed=shape)
        return end_us, self._on_time(staged, end_us)

    def _takes_us(self, shape: BatchShape) -> int:
        return max(1, round(self._measured_us(shape)))

    def _answers(self, jobs: list[SimulatedJob], start_us: int, end_us: int) -> Answers:
        if self._answering.exits is None:
            return Answers.at_end(len(jobs), end_us)
        at_exit = BatchShape.of(jobs, [job.exit_depth for job in jobs])
        return Answers.of(jobs, min(end_us, start_us + self._takes_us(at_exit)), end_us)

    def _staged_until(self, start_us: int, end_us: int) -> list[SimulatedJob]:
        """The batch that became full while another ran, if one did."""
        staged = self._full_batch(start_us)
        while not staged and (next_us := min(self._inbox.next_us, self._queue.next_change_us)) < end_us:
            now_us = int(next_us)
            self._receive(now_us)
            staged = self._full_batch(now_us)
        return staged

    def _full_batch(self, now_us: int) -> list[SimulatedJob]:
        self._queue.drop_late(now_us)
        return self._queue.full_batch(now_us)

    def _on_time(self, staged: list[SimulatedJob], now_us: int) -> list[SimulatedJob]:
        """The staged batch, whole, unless all its rows are late."""
        if not staged or any(not job.is_late(now_us) for job in staged):
            return staged
        if self._admission is not None:
            self._admission.batches.began(staged[0].root, BatchShape.of(staged), now_us)
            self._admission.batches.finished(now_us, has_run=False)
        return []

    # --- arrivals ---

    def _receive(self, until_us: int) -> None:
        jobs = self._inbox.take_until(until_us)
        if self._admission is not None:
            for job in jobs:
                self._ask(self._admission, job)
        elif len(self._queue) + len(jobs) <= self._max_waiting:
            self._queue.add(jobs)
        else:
            for job in jobs:
                self._add_if_not_full(job)

    def _ask(self, admission: Admission[SimulatedJob], job: SimulatedJob) -> None:
        """Let the forecast and admission decide; rows that are late by now have left the queue."""
        now_us = job.arrived_us
        self._queue.drop_late(now_us)
        if self._is_forecast_late(job):
            self._log.reject(job, Rejection.PREDICTED_LATE)
        elif (rejection := self._queue.admit(job)) is not None:
            self._log.reject(job, rejection.reason)
        if now_us - self._forecast_us >= _FORECAST_EVERY_US:
            self._forecast, self._forecast_us = WaitForecast.of(admission, now_us), now_us

    def _is_forecast_late(self, job: SimulatedJob) -> bool:
        if self._forecast is None or job.deadline_us is None or job.arrived_us - self._forecast_us > FRESH_US:
            return False
        deadline_in_us = job.deadline_us - self._forecast_us
        return self._forecast.finish_in_us(job.num_tokens, (job.tenant,), deadline_in_us) > deadline_in_us

    def _add_if_not_full(self, job: SimulatedJob) -> None:
        self._queue.drop_late(job.arrived_us)
        if len(self._queue) < self._max_waiting:
            self._queue.add((job,))
        else:
            self._log.reject(job, Rejection.QUEUE_FULL)

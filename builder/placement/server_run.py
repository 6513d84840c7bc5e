"""The serve loop of one server in virtual time, which is stopped at any moment and goes on later.

One batch runs; the next is staged as soon as it is full, otherwise when the machine becomes free. At one moment rows
arrive first, then the batch ends, then the next is chosen. What happens before a moment is played once all rows are
known that arrive before it; nothing that happens later is.

Events that move nothing are not played: time goes from batch to batch, and to an arrival only where it may make a batch
full; from one passed deadline to the next only where the policy may choose otherwise for it. With admission, which
decides about each row, and in a fleet, whose gateway sees how many requests each server holds, each arrival is played.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.depth_choice import DepthChoice
from backends.scheduling.rejection import Rejection
from backends.scheduling.wait_forecast import FRESH_US, Told, WaitForecast
from builder.placement.intake import Intake
from builder.placement.late_watch import LateWatch
from builder.placement.machine import Machine
from builder.placement.simulated_exits import Answers, Exits
from builder.placement.simulated_job import SimulatedJob, whole_shape
from builder.placement.simulated_queue import SimulatedQueue
from builder.placement.simulated_students import STUDENT_STACK, Students
from builder.placement.simulation_log import SimulationLog

_FORECAST_EVERY_US = 100_000
"""As the serve loop."""


@dataclass(frozen=True)
class Answering:
    """What answers rows besides all layers, if something does."""

    exits: Exits | None = None
    students: Students | None = None

    def num_students(self, jobs: Sequence[SimulatedJob]) -> int:
        """Return how many students answer a batch."""
        return 0 if self.students is None else round(max(job.depth for job in jobs) / self.students.depth)

    def shape(self, jobs: Sequence[SimulatedJob]) -> BatchShape:
        """Add up a batch that runs now."""
        if self.exits is None and self.students is None:
            return whole_shape(jobs)
        return BatchShape.of(jobs, [job.passed for job in jobs])


@dataclass(frozen=True)
class _Staged:
    """A batch that runs next, from `ready_us` on."""

    jobs: list[SimulatedJob]
    ready_us: int


class ServerRun:
    """One server on its way through a load.

    Args:
        intake: Who is still to come.
        queue: Where rows wait.
        machine: What batches take.
        admission: Decides about arriving rows; without it all wait, as long as no more than `max_waiting` do.
        max_waiting: Rows that may wait without admission.
        answering: What answers.
        late: Watches the queue, where `num_open` is read while it runs.
    """

    def __init__(
        self,
        intake: Intake,
        queue: SimulatedQueue,
        machine: Machine,
        admission: Admission[SimulatedJob] | None,
        max_waiting: int,
        answering: Answering = Answering(),
        late: LateWatch | None = None,
    ) -> None:
        self._intake = intake
        self._queue = queue
        self._machine = machine
        self._admission = admission
        self._max_waiting = max_waiting
        self._answering = answering
        self._late = late
        self._depths = None if admission is None else DepthChoice(admission)
        # Rows for which a batch has room need not be looked at one by one, where nothing else depends on their moment.
        self._room = queue.room if admission is None and late is None and not machine.is_slowed else None
        self._told: Told | None = None
        self._told_us = 0
        self._staged: _Staged | None = None
        self._running: Sequence[SimulatedJob] = ()
        self._known_us: float = 0
        self._played = self._play()
        self._is_over = False
        self.now_us = 0
        self.log = SimulationLog()
        self.wakes_us: float = intake.next_us
        """Nothing happens before this moment, unless a row is added."""

    def add(self, job: SimulatedJob) -> None:
        """Let a row come, at its own time, which is not past."""
        self._intake.add(job)
        self.wakes_us = min(self.wakes_us, self._intake.next_us)

    def advance(self, until_us: float) -> None:
        """Play what happens before a moment; all rows that come before it have been added."""
        self._known_us = until_us
        while self.wakes_us < until_us:
            self.wakes_us = next(self._played, math.inf)

    def num_open(self, now_us: float) -> int:
        """Count the rows that were added, and have not been answered or rejected before a moment.

        The count stays what it is until `open_until_us`, unless a row is added or something is played.
        """
        if self._is_over:
            return 0
        staged = 0 if self._staged is None else len(self._staged.jobs)
        late = 0 if self._late is None else self._late.count(now_us)
        return len(self._intake) + len(self._queue) - late + staged + len(self._running)

    @property
    def open_until_us(self) -> float:
        """Up to when the rows that wait stay on time."""
        return math.inf if self._late is None or self._is_over else self._late.next_us

    def kill(self, now_us: int) -> list[SimulatedJob]:
        """End it where it is; returns the rows that it held, in the order in which they were sent."""
        self._played.close()
        self._is_over, self.wakes_us = True, math.inf
        staged = [] if self._staged is None else self._staged.jobs
        waiting = [job for job in self._queue.left() if not job.is_late(now_us - 1)]
        left = [*self._intake.left(), *waiting, *staged, *self._running]
        self._staged, self._running = None, ()
        return sorted(left, key=lambda job: job.place)

    # --- batches ---

    def _play(self) -> Generator[float, None, None]:
        """Yield the next moment again and again until all is known that comes by then."""
        while True:
            self._queue.drop_late(self.now_us)
            if self._queue:
                yield from self._run_batches()
            elif self._intake.next_us < self._known_us:
                self.now_us = int(self._intake.next_us)
                self._receive(self.now_us)
            elif self._known_us == math.inf:
                return
            else:
                yield self._intake.next_us

    def _run_batches(self) -> Iterator[float]:
        """Play from the first batch of an idle machine to its last, when nothing is staged."""
        jobs = self._queue.next_batch(self.now_us)
        self._staged = _Staged(jobs, self.now_us + self._machine.staging_us(jobs))
        while self._staged is not None:
            yield from self._wait_until(self._staged.ready_us)
            jobs, self._staged = self._begin(self._staged.jobs), None
            if jobs:
                yield from self._run_batch(jobs)
            else:
                self._tell_after_batch()

    def _wait_until(self, ready_us: int) -> Iterator[float]:
        while self.now_us < ready_us:
            next_us = min(self._next_us(), ready_us)
            if next_us >= self._known_us:
                yield next_us
                continue
            self.now_us = int(next_us)
            self._receive(self.now_us)

    def _run_batch(self, jobs: list[SimulatedJob]) -> Iterator[float]:
        """Play until the batch is done; then it is known what runs next, if that is staged."""
        start_us, self._running = self.now_us, jobs
        shape = self._answering.shape(jobs)
        self._machine.begin(shape, start_us)
        self._stage_if_full()
        while True:
            end_us, next_us = self._machine.end_us(), self._next_us()
            if self._known_us <= min(end_us, next_us):
                yield min(end_us, next_us)
            elif next_us < end_us:
                self.now_us = int(next_us)
                self._receive(self.now_us)
                self._stage_if_full()
            else:
                break
        self.now_us = end_us
        self._receive(end_us)
        self._finish(jobs, shape, start_us)

    def _next_us(self) -> float:
        """Return when something may happen before the batch that runs, or is staged, goes on."""
        if self._staged is None:
            arrives_us = self._intake.next_us if self._room is None else self._intake.next_beyond_us(*self._room())
            return min(arrives_us, self._queue.next_change_us)
        # What comes behind a staged batch may come at once, but for whoever looks on meanwhile.
        return self._intake.next_us if self._late is not None or self._machine.is_slowed else math.inf

    def _stage_if_full(self) -> None:
        """Stage the batch that has become full while another runs, if one has."""
        if self._staged is not None:
            return
        self._queue.drop_late(self.now_us)
        if jobs := self._queue.full_batch(self.now_us):
            self._staged = _Staged(jobs, self.now_us + self._machine.staging_us(jobs))

    def _finish(self, jobs: list[SimulatedJob], shape: BatchShape, start_us: int) -> None:
        end_us, self._running = self.now_us, ()
        answered_us = self._machine.answered_us(len(jobs), end_us)
        answers = self._early_answers(jobs, start_us, end_us, answered_us)
        self.log.batch(start_us, end_us, shape, jobs, self._answering.num_students(jobs), answered_us, answers)
        if self._admission is not None:
            for job in jobs:
                self._admission.accounts.spend_depth(job, job.passed)
            self._admission.batches.finished(end_us, passed=shape)
            self._tell_after_batch()

    def _early_answers(self, jobs: list[SimulatedJob], start_us: int, end_us: int, answered_us: int) -> Answers | None:
        if self._answering.exits is None:
            return None
        at_exit = BatchShape.of(jobs, [job.exit_depth for job in jobs])
        return Answers.of(jobs, min(end_us, start_us + self._machine.alone_us(at_exit)), answered_us)

    def _begin(self, jobs: list[SimulatedJob]) -> list[SimulatedJob]:
        """Return those of the staged batch that are on time: no others run."""
        if self._answering.students is not None and self._depths is not None:
            self._depths.choose(STUDENT_STACK, jobs, self._answering.students.choices, self.now_us)
        on_time = [job for job in jobs if not job.is_late(self.now_us)]
        if self._admission is not None:
            self._admission.batches.began(jobs[0].root, BatchShape.of(jobs), self.now_us)
            if not on_time:
                self._admission.batches.finished(self.now_us, has_run=False)
        return on_time

    # --- arrivals ---

    def _receive(self, until_us: int) -> None:
        while self._intake.next_us <= until_us:
            jobs = self._intake.take_until(until_us)
            self._machine.note_received(len(jobs))
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
        if not self._intake.forecasts and self._is_forecast_late(job):
            self.log.reject(job, Rejection.PREDICTED_LATE)
        elif (rejection := self._queue.admit(job)) is not None:
            self.log.reject(job, rejection.reason)
        self._tell(admission, now_us)

    def _is_forecast_late(self, job: SimulatedJob) -> bool:
        told = self._told
        if told is None or job.deadline_us is None or job.arrived_us - told.at_us > FRESH_US:
            return False
        deadline_in_us = job.deadline_us - told.at_us
        return told.forecast.finish_in_us(job.num_tokens, (job.tenant,), deadline_in_us) > deadline_in_us

    def _tell_after_batch(self) -> None:
        if self._admission is not None and self._intake.forecasts:
            self._queue.drop_late(self.now_us)
            self._tell(self._admission, self.now_us, is_idle=self._staged is None and not self._queue)

    def _tell(self, admission: Admission[SimulatedJob], now_us: int, is_idle: bool = False) -> None:
        """Tell the forecast, as often as the serve loop does."""
        if is_idle or now_us - self._told_us >= _FORECAST_EVERY_US:
            self._told_us = now_us
            self._told = Told(now_us, WaitForecast.of(admission, now_us))
            self._intake.hear(self._told)

    def _add_if_not_full(self, job: SimulatedJob) -> None:
        self._queue.drop_late(job.arrived_us)
        if len(self._queue) < self._max_waiting:
            self._queue.add((job,))
        else:
            self.log.reject(job, Rejection.QUEUE_FULL)

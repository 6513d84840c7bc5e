"""The processes in front of the engine, in virtual time: they reject by forecast, queue rows as texts and encode them.

Usage:
    intake = FrontIntake(OpenIntake(), FrontCosts(reach_us=2_000, encoding=Linear(1_500, 40), hop_us=1_000))
    intake.reject_with(log.reject)

The books are the server's own: what was accepted and is not forecast yet, and what rows took lately.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter

from backends.lower.accepted_load import AcceptedLoad, Work
from backends.lower.recent_times import RecentTimes
from backends.scheduling.rejection import Rejection
from backends.scheduling.wait_forecast import Told
from builder.placement.intake import Intake
from builder.placement.server_costs import FrontCosts
from builder.placement.simulated_job import SimulatedJob

Reject = Callable[[SimulatedJob, Rejection], None]
_ARRIVAL = attrgetter("arrived_us")
_BATCHING_DELAY_PART = 0.05
_MAX_BATCHING_DELAY_US = 25_000
"""As the encode queue."""
_TOLD_WITHIN_US = 300_000


class _Worker:
    """One process: rows wait, and are encoded together."""

    def __init__(self, costs: FrontCosts, instances: int, reject: Reject) -> None:
        self._costs = costs
        self._instances = instances
        self._reject = reject
        self._waiting: deque[tuple[SimulatedJob, Work]] = deque()
        self._load = AcceptedLoad()
        self._row_times, self._call_times = RecentTimes(), RecentTimes()
        self._ends_us = self._looks_us = 0
        """When what is encoded is done, and when the next rows are taken."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_us(self) -> float:
        """When it takes rows; a full batch does not wait for company."""
        if not self._waiting:
            return math.inf
        if len(self._waiting) < self._costs.batch_rows:
            return self._looks_us
        return max(self._ends_us, min(self._looks_us, self._waiting[self._costs.batch_rows - 1][0].arrived_us))

    def left(self) -> list[SimulatedJob]:
        return [job for job, _ in self._waiting]

    def accept(self, job: SimulatedJob, told: Told | None) -> None:
        """Check a row as it arrives."""
        now_us, work = job.arrived_us, _work(job, told)
        self._forget(told, now_us)
        if job.deadline_us is not None:
            if job.deadline_us <= now_us:
                self._reject(job, Rejection.LATE_ON_ARRIVAL)
                return
            wait_us = len(self._waiting) * self._row_times.usual_us + self._call_times.usual_us
            finish_us = _finish_us(told, now_us, job, job.num_tokens) + wait_us + self._ahead_us(work, told)
            if finish_us > job.deadline_us:
                self._reject(job, Rejection.PREDICTED_LATE)
                return
        self._load.accept(work)
        if not self._waiting:
            self._looks_us = max(self._looks_us, now_us)
        self._waiting.append((job, work))

    def encode(self, now_us: int, told: Told | None) -> list[SimulatedJob]:
        """Take the next rows, and return them as they reach the engine."""
        self._forget(told, now_us)
        batch: list[SimulatedJob] = []
        while self._waiting and len(batch) < self._costs.batch_rows and self._waiting[0][0].arrived_us <= now_us:
            job, work = self._waiting.popleft()
            if (rejection := _lateness(job, now_us, told)) is not None:
                self._load.drop(work)
                self._reject(job, rejection)
                continue
            self._load.forward(work, now_us)
            batch.append(job)
        self._ends_us = self._looks_us = now_us
        if batch:
            taken_us = self._costs.encoding.of(len(batch))
            self._ends_us += max(1, round(taken_us))
            self._row_times.note(taken_us / len(batch))
            self._call_times.note(taken_us)
            engine_us = (
                0.0 if told is None or not told.is_fresh(now_us) else told.finish_us(1, (), None) - self._ends_us
            )
            delay_us = min(max(0.0, _BATCHING_DELAY_PART * engine_us), _MAX_BATCHING_DELAY_US)
            self._looks_us = self._ends_us + round(delay_us)
        reaches_us = self._ends_us + round(self._costs.hop_us)
        for job in batch:
            job.arrived_us = reaches_us
        return batch

    def _forget(self, told: Told | None, now_us: int) -> None:
        self._load.forget_told(max(0 if told is None else told.at_us, now_us - _TOLD_WITHIN_US))

    def _ahead_us(self, work: Work, told: Told | None) -> float:
        if told is None or not told.forecast.is_fair:
            return 0.0
        return self._instances * self._load.ahead_us(work.tenant, work.us)


class FrontIntake:
    """All processes of one server, which get requests by turns.

    Args:
        requests: Who comes, at the times at which requests are sent.
        costs: What it takes.
    """

    forecasts = True

    def __init__(self, requests: Intake, costs: FrontCosts) -> None:
        self._requests = requests
        self._costs = costs
        self._reach_us = round(costs.reach_us)
        self._workers = [_Worker(costs, costs.workers, self._rejected) for _ in range(costs.workers)]
        self._turn = 0
        self._handed: deque[SimulatedJob] = deque()
        """Encoded, on the way to the engine."""
        self._told: Told | None = None
        self._reject: Reject | None = None

    def reject_with(self, reject: Reject) -> None:
        self._reject = reject

    @property
    def next_us(self) -> float:
        return min(self._arrives_us, self._hands_us, *(worker.next_us for worker in self._workers))

    def next_beyond_us(self, rows: int, tokens: int) -> float:
        return self.next_us

    def __len__(self) -> int:
        return len(self._requests) + sum(map(len, self._workers)) + len(self._handed)

    def add(self, job: SimulatedJob) -> None:
        self._requests.add(job)

    def take_until(self, until_us: int) -> list[SimulatedJob]:
        """Play the next thing that happens here."""
        now_us = self.next_us
        if now_us > until_us:
            return []
        if self._arrives_us == now_us:
            for job in self._requests.take_until(int(now_us) - self._reach_us):
                job.arrived_us += self._reach_us
                self._workers[self._turn].accept(job, self._told)
                self._turn = (self._turn + 1) % len(self._workers)
            return []
        if self._hands_us == now_us:
            return self._hand_over(int(now_us))
        worker = min(self._workers, key=lambda each: each.next_us)
        for job in worker.encode(int(now_us), self._told):
            insort(self._handed, job, key=_ARRIVAL)
        return []

    def left(self) -> Sequence[SimulatedJob]:
        return [*self._requests.left(), *(job for worker in self._workers for job in worker.left()), *self._handed]

    def hear(self, told: Told) -> None:
        self._told = told

    @property
    def _arrives_us(self) -> float:
        return self._requests.next_us + self._reach_us

    @property
    def _hands_us(self) -> float:
        return self._handed[0].arrived_us if self._handed else math.inf

    def _hand_over(self, now_us: int) -> list[SimulatedJob]:
        handed = []
        while self._handed and self._handed[0].arrived_us <= now_us:
            handed.append(self._handed.popleft())
        return handed

    def _rejected(self, job: SimulatedJob, reason: Rejection) -> None:
        if self._reject is not None:
            self._reject(job, reason)


def _work(job: SimulatedJob, told: Told | None) -> Work:
    work_us = 0.0 if told is None else job.least_depth * told.forecast.row_work_us(job.num_tokens)
    return Work(job.tenant, work_us, job.num_tokens)


def _finish_us(told: Told | None, now_us: int, job: SimulatedJob, num_tokens: int) -> int:
    if told is None or not told.is_fresh(now_us):
        return now_us
    return max(now_us, told.finish_us(num_tokens, (job.tenant,), job.deadline_us))


def _lateness(job: SimulatedJob, now_us: int, told: Told | None) -> Rejection | None:
    """Return why a row that has waited here is rejected, if it cannot be answered on time any more."""
    if job.deadline_us is None:
        return None
    if job.deadline_us <= now_us:
        return Rejection.LATE_WAITING
    return Rejection.PREDICTED_LATE if _finish_us(told, now_us, job, 1) > job.deadline_us else None

"""Keeps the jobs going: starts what may start, notices how workers end, ends what was cancelled.

All it knows is in the database, so the next manager goes on where a killed one was.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from backends.errors import HplmError, InvalidArgumentError, UnavailableError
from backends.registry.registry import Registry
from builder.manager.failures import failure_of
from builder.manager.jobs import QUICK, Failure, Job, JobState, ready
from builder.manager.store import JobStore
from builder.manager.targets import RegistryStamp, described, has_landed
from builder.manager.unchanged import Unchanged
from builder.manager.workers import Workers
from builder.requests.jobs import stored_request
from builder.requests.targets import Target

LOGGER = logging.getLogger(__name__)
_QUICK_AT_ONCE = 4
"""Jobs of moments that run at once: each is a process, and deletions may come by the thousand."""
_START_PAUSE_S = 10.0


@dataclass(frozen=True)
class Limits:
    """`workers` jobs run at once, beside those of moments; a job is tried `attempts` times.

    A cancelled one has `grace_s` to stop by itself.
    """

    workers: int = 1
    attempts: int = 3
    grace_s: float = 10.0
    poll_s: float = 0.3

    def __post_init__(self) -> None:
        if self.workers < 1 or self.attempts < 1:
            raise InvalidArgumentError("a manager needs at least one worker and one attempt per job")
        if self.grace_s < 0 or self.poll_s <= 0:
            raise InvalidArgumentError("the grace cannot be negative, and the pause between looks must be positive")


class Supervisor:
    def __init__(self, store: JobStore, registry: Registry, workers: Workers, limits: Limits) -> None:
        self._store = store
        self._registry = registry
        self._workers = workers
        self._limits = limits
        self._watched: dict[int, Job] = {}
        self._asked_to_stop = Unchanged()
        self._may_start_s = 0.0
        self._not_started: Counter[int] = Counter()
        """How often the worker of a job could not be started."""
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look at the jobs now: one was added, or is to be cancelled."""
        self._wake.set()

    def stop(self) -> None:
        """Stop looking; running jobs go on without a manager."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join()
        self._workers.close()

    def look(self) -> None:
        """One round: tend what runs, then start what may."""
        for job in self._store.unfinished():
            if job.state is JobState.RUNNING:
                self._tend_alone(job)
        unfinished = self._store.unfinished()
        running = {job.id: job for job in unfinished if job.state is JobState.RUNNING}
        for job_id in self._watched.keys() - running.keys():
            self._workers.release(self._watched[job_id])
        self._watched = running
        self._asked_to_stop.keep(running)
        self._start_waiting(unfinished)

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                self.look()
            except HplmError as error:
                LOGGER.warning("jobs cannot be looked after just now: %s", error)
            except Exception:
                LOGGER.exception("a defect while looking after the jobs")
            self._wake.wait(self._limits.poll_s)
            self._wake.clear()

    def _tend_alone(self, job: Job) -> None:
        """Look after one job; its defects do not stop the others' care."""
        try:
            self._tend(job)
        except UnavailableError:
            raise
        except Exception:
            LOGGER.exception("job %d cannot be looked after", job.id)

    def _tend(self, job: Job) -> None:
        ending = self._workers.ending(job)
        if ending is None and self._is_overdue(job):
            self._workers.kill(job)
            ending = "worker was killed, because it did not stop when the job was cancelled"
        if ending is not None:
            self._settle(self._store.job(job.id), ending)

    def _is_overdue(self, job: Job) -> bool:
        return job.is_cancel_requested and self._asked_to_stop.seconds(job.id, job.attempt) >= self._limits.grace_s

    def _settle(self, job: Job, ending: str) -> None:
        """A worker is gone; if it has not said how its job ended, find that out or have it tried again."""
        if job.state is not JobState.RUNNING:
            return
        try:
            target = stored_request(job.request).target
        except InvalidArgumentError as error:
            self._store.finish(job, JobState.FAILED, failure=failure_of(error))
            return
        if target is not None and self._has_landed(job, target):
            self._store.finish(job, JobState.DONE, described(target, self._registry))
        elif job.is_cancel_requested:
            self._store.finish(job, JobState.CANCELLED)
        elif job.attempt < self._limits.attempts:
            self._store.requeue(job, ending)
        else:
            message = f"{ending} (attempt {job.attempt} of {self._limits.attempts})"
            self._store.finish(job, JobState.FAILED, failure=Failure(code="WORKER_LOST", message=message))
        LOGGER.warning("job %d: %s", job.id, ending)

    def _has_landed(self, job: Job, target: Target) -> bool:
        if not job.baseline:
            return False
        before = RegistryStamp.parse(job.baseline)
        return has_landed(job.kind, before, RegistryStamp.of(target, self._registry))

    def _start_waiting(self, unfinished: Sequence[Job]) -> None:
        running = [job.kind in QUICK for job in unfinished if job.state is JobState.RUNNING]
        free = {True: _QUICK_AT_ONCE - running.count(True), False: self._limits.workers - running.count(False)}
        for job in sorted(ready(unfinished), key=lambda job: self._not_started[job.id]):
            is_quick = job.kind in QUICK
            if free[is_quick] > 0 and time.monotonic() >= self._may_start_s:
                free[is_quick] -= 1
                self._start(job)

    def _start(self, job: Job) -> None:
        claimed = self._store.claim(job.id)
        if claimed is None:
            return
        self._watched[job.id] = claimed
        try:
            self._workers.start(claimed)
        except InvalidArgumentError as error:
            self._store.finish(claimed, JobState.FAILED, failure=failure_of(error))
        except (HplmError, OSError) as error:
            self._start_later(claimed, f"worker could not be started: {error}")

    def _start_later(self, job: Job, reason: str) -> None:
        """Queue a job again whose worker could not be started: for want of memory, processes or disk, as a rule.

        The others would not start either; where only some do not, these come after them next time.
        """
        self._not_started[job.id] += 1
        self._may_start_s = time.monotonic() + _START_PAUSE_S
        LOGGER.warning("job %d: %s; nothing is started for %g s", job.id, reason, _START_PAUSE_S)
        self._store.requeue(job, reason, counts=False)

"""Handles outcomes: a job is answered, passed on, gets a fallback, or is retried."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from backends.clock import now_us
from backends.engine.answer_level import Scored
from backends.engine.answering import answer, are_finite, reject
from backends.engine.job import Job
from backends.engine.job_queue import JobQueue
from backends.engine.passed import Passed
from backends.engine.quarantine import Quarantine
from backends.engine.stack_protocol import Done, Outcome, SoFar
from backends.engine.staged_batch import StagedBatch
from backends.errors import HplmError, InvalidArgumentError, NotANumberError
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.rejection import late_computed, late_waiting
from backends.wire import Rows

LOGGER = logging.getLogger(__name__)
Conclude = Callable[[StagedBatch, Sequence[Job]], None]


@dataclass(frozen=True)
class Emitted:
    """An outcome of a job in a batch, or the error that it ends with."""

    batch: StagedBatch
    job: Job
    outcome: Outcome | HplmError


class Outcomes:
    """Handles outcomes on a thread of its own, so that the compute thread goes on."""

    def __init__(self, queue: JobQueue, admission: Admission[Job], quarantine: Quarantine) -> None:
        self._queue = queue
        self._admission = admission
        self._quarantine = quarantine
        self.answers: Counter[tuple[str, str]] = Counter()
        """Answers of hPLMs with ladders, by level and reason."""
        self.answer_us: Counter[str] = Counter()
        """Time from their rows' arrival to these answers, by level."""
        self.being_answered: tuple[Job, ...] = ()
        """Jobs that their batches are done with, and that may have no answer yet."""

    def take(self, emitted: Sequence[Emitted], conclude: Conclude) -> None:
        """Handle outcomes in the order in which they were emitted; a job's first final outcome counts.

        Args:
            emitted: Outcomes of any batches.
            conclude: Called with the jobs that their batch is done with, before any of them is answered.
        """
        finals: dict[Job, Emitted] = {}
        for one in emitted:
            if not isinstance(one.outcome, SoFar) and one.job in one.batch.open_jobs:
                finals.setdefault(one.job, one)
        self.being_answered = tuple(finals)
        for batch in dict.fromkeys(one.batch for one in finals.values()):
            conclude(batch, [job for job, one in finals.items() if one.batch is batch])
        self._deal_with(list(finals.values()))
        self.being_answered = ()
        for batch in dict.fromkeys(one.batch for one in finals.values()):
            if batch.spoilt_jobs and not batch.open_jobs:
                self._retry(batch)

    def note_finished(self, batch: StagedBatch, now_us: int) -> None:
        """Learn what a batch took, by the layers that its rows passed, until the next one may begin. Under the lock."""
        is_otherwise = self.note_passed(batch) or batch.lacks_rows
        shape = BatchShape.of(batch.jobs, [job.depth for job in batch.jobs]) if is_otherwise else None
        self._admission.batches.finished(now_us, batch.has_run, shape)

    def note_passed(self, batch: StagedBatch) -> bool:
        """Let tenants pay for the layers that their rows passed; returns whether any passed others than were likely.

        In the last of several stages it is known of all rows.
        """
        elsewhere = [job for job in batch.jobs if job.passed not in (None, job.depth)]
        for job in elsewhere:
            if job.passed is not None:
                self._admission.accounts.spend_depth(job, job.passed)
                job.depth = job.passed
        return bool(elsewhere)

    def _retry(self, batch: StagedBatch) -> None:
        jobs, batch.spoilt_jobs = batch.spoilt_jobs, []
        LOGGER.warning("%d rows came out as NaN or infinity and run again, isolated", len(jobs))
        for job in jobs:
            job.retry()
        self._queue.put_back(jobs)

    def _deal_with(self, finals: Sequence[Emitted]) -> None:
        for one in finals:
            if isinstance(one.outcome, HplmError):
                reject([one.job], one.outcome, self._count)
        done = [(one, one.outcome) for one in finals if isinstance(one.outcome, Done)]
        self._answer_done([(one, Scored(outcome.logits, outcome.level)) for one, outcome in done])
        self._pass_on([(one, one.outcome) for one in finals if isinstance(one.outcome, Passed)])

    def _pass_on(self, passed: Sequence[tuple[Emitted, Passed]]) -> None:
        """Send rows to the next stage; the late ones, and those of NaN or huge numbers, go no further."""
        if unhealthy := [one for one, outcome in passed if not _are_plausible(outcome.states)]:
            self._deal_with_unhealthy(unhealthy)
        now = now_us()
        for one, outcome in passed:
            if one in unhealthy:
                continue
            if one.job.is_late(now):
                reject([one.job], late_computed())
            else:
                one.job.end(outcome)

    def go_on(self, jobs: Sequence[Job]) -> None:
        """Queue jobs that have passed the stage before, but for those that are late."""
        now = now_us()
        reject([job for job in jobs if job.is_late(now)], late_waiting(), self._count)
        if on_time := [job for job in jobs if not job.is_late(now)]:
            self._queue.readd(on_time)

    def _answer_done(self, done: Sequence[tuple[Emitted, Scored]]) -> None:
        healthy = are_finite([scored.logits for _, scored in done])
        unhealthy = [one for (one, _), is_healthy in zip(done, healthy, strict=True) if not is_healthy]
        if unhealthy:
            self._deal_with_unhealthy(unhealthy)
        of_healthy = [pair for pair, is_healthy in zip(done, healthy, strict=True) if is_healthy]
        answer([one.job for one, _ in of_healthy], [scored for _, scored in of_healthy], self._count)

    def _count(self, sent: Mapping[Job, Scored]) -> None:
        """Count the answers of hPLMs that have levels, as they are sent."""
        now = now_us()
        for job, scored in sent.items():
            if scored.level is not None and not job.is_canary:
                self.answers[scored.level.name, scored.level.reason(job.level)] += 1
                self.answer_us[scored.level.name] += now - job.arrived_us

    def _deal_with_unhealthy(self, unhealthy: Sequence[Emitted]) -> None:
        """Retry rows of NaN or infinity in isolation, because such a row spoils others in its attention window."""
        for one in unhealthy:
            if not one.batch.is_isolated:
                one.batch.spoilt_jobs.append(one.job)
        for batch in dict.fromkeys(one.batch for one in unhealthy if one.batch.is_isolated):
            guilty = {one.job: _unhealthy(one.job) for one in unhealthy if one.batch is batch}
            self.blame(guilty, batch, [[job for job in batch.jobs if job.is_retried]])
            for job, error in guilty.items():
                reject([job], error)

    def blame(self, faults: Mapping[Job, HplmError], batch: StagedBatch, reruns: Sequence[Sequence[Job]]) -> None:
        """Quarantine the hPLMs of faulty rows, and charge their tenants for the reruns.

        Nothing happens where several hPLMs ran and all failed: the cause is then none of them. A row that arrived with
        NaN or huge numbers in it is its sender's fault, and the sender need not be the tenant.
        """
        guilty = {job: error for job, error in faults.items() if _are_plausible(job.hidden)}
        keys = {job.hplm_key for job in batch.jobs}
        if not guilty or (len(keys) > 1 and {job.hplm_key for job in guilty} == keys):
            return
        for job, error in guilty.items():
            LOGGER.warning("hPLM %s fails and is kept out for a while: %s", job.entry.id, error)
            self._quarantine.add(job.hplm_key, error)
        shapes = [BatchShape.of(jobs) for jobs in reruns if jobs]
        with self._queue.changed:
            self._admission.accounts.spend_batches([job.tenant for job in guilty], batch.stack.key, shapes)


def keep_fallback(job: Job, outcome: SoFar) -> None:
    if torch.isfinite(outcome.logits).all():
        job.fallback = Scored(outcome.logits, outcome.level)


def _unhealthy(job: Job) -> HplmError:
    if not _are_plausible(job.hidden):
        return InvalidArgumentError("the hidden rows of this request hold what is not a number, or much too large")
    return NotANumberError(job.entry.id)


def _are_plausible(states: Rows) -> bool:
    """Whether all are numbers that 16 bits can hold: layers keep states far below that."""
    return bool((np.abs(states) <= np.finfo(np.float16).max).all())

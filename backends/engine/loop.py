"""The serve loop: select what runs next, stage it, run it, answer it.

Jobs arrive from Triton's threads and wait here; one thread takes batches from any tenants, and answers each job
through its own `respond`. Whatever goes wrong with a job is that job's answer; the loop goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.clock import now_us
from backends.engine.heads import classification_answer
from backends.engine.job import Answer, Job
from backends.engine.packing import PackedRows
from backends.engine.stack import ReadyHplm, UpperStack
from backends.errors import HplmError, UnavailableError, presentable
from backends.registry.entries import HplmEntry
from backends.scheduling.policy import Capacity, Policy

LOGGER = logging.getLogger(__name__)
DEFAULT_MAX_WAITING = 10_000


@dataclass(frozen=True)
class StagedBatch:
    """Jobs whose adapters are pinned and whose rows are packed on the device."""

    jobs: list[Job]
    hplms: list[ReadyHplm]
    packed: PackedRows
    stack: UpperStack


class ServeLoop:
    """Owns the queue in front of the stacks.

    Args:
        stack_of: The stack of a root, loaded at first use.
        load: An hPLM version's artefact from the bank.
        policy: Chooses each batch.
        capacity: What a batch may hold; never more adapters than a stack has slots.
        max_waiting: Rows that may wait; what comes on top is refused at once.
    """

    def __init__(
        self,
        stack_of: Callable[[str], UpperStack],
        load: Callable[[HplmEntry], HplmArtifact],
        policy: Policy,
        capacity: Capacity,
        max_waiting: int,
    ) -> None:
        self._stack_of = stack_of
        self._load = load
        self._policy = policy
        self._capacity = capacity
        self._max_waiting = max_waiting
        self._waiting: list[Job] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="serve-loop", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, all or none; they are answered in any case."""
        refusal = "the server is stopping"
        with self._changed:
            if not self._stopping and len(self._waiting) + len(jobs) <= self._max_waiting:
                self._waiting.extend(jobs)
                self._changed.notify()
                return
            if not self._stopping:
                refusal = f"the queue is full: {len(self._waiting)} rows wait"
        _refuse(jobs, UnavailableError(refusal))

    def close(self) -> None:
        """Finish the running batch, refuse what waits."""
        with self._changed:
            self._stopping = True
            refused, self._waiting = self._waiting, []
            self._changed.notify()
        self._thread.join()
        _refuse(refused, UnavailableError("the server is stopping"))

    def _serve(self) -> None:
        while jobs := self._select():
            try:
                self._serve_batch(jobs)
            except Exception as error:  # a defect; whoever has an answer already is not answered again
                _refuse(jobs, error)

    def _serve_batch(self, jobs: list[Job]) -> None:
        staged = self._stage(jobs)
        if staged is None:
            return
        try:
            self._answer(staged.jobs, self._run(staged))
        finally:
            for hplm in staged.hplms:
                staged.stack.release(hplm)

    def _select(self) -> list[Job]:
        """Wait for work and take the next batch; empty once the loop is to stop."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return []
                late, jobs = self._take(now_us())
            _refuse(late, UnavailableError("the deadline passed while the request waited"))
            if jobs:
                return jobs

    def _take(self, now: int) -> tuple[list[Job], list[Job]]:
        """Take the late jobs and the next batch out of the queue."""
        late = [job for job in self._waiting if job.is_late(now)]
        self._waiting = [job for job in self._waiting if not job.is_late(now)]
        try:
            chosen = set(self._policy.select(self._waiting, now, self._capacity))
        except Exception:
            LOGGER.exception("the policy failed; the oldest job runs alone")
            chosen = {0} if self._waiting else set()
        jobs = [job for index, job in enumerate(self._waiting) if index in chosen]
        self._waiting = [job for index, job in enumerate(self._waiting) if index not in chosen]
        return late, jobs

    def _stage(self, jobs: list[Job]) -> StagedBatch | None:
        """Pin adapters and pack rows; a job whose adapter cannot be had is answered with the reason."""
        stack = self._stack_of(jobs[0].root)
        pinned: list[tuple[Job, ReadyHplm]] = []
        for job in jobs:
            try:
                pinned.append((job, stack.ready(job.hplm_key, partial(self._load, job.entry))))
            except Exception as error:
                _refuse([job], error)
        if not pinned:
            return None
        staged, hplms = [job for job, _ in pinned], [hplm for _, hplm in pinned]
        try:
            return StagedBatch(staged, hplms, stack.pack([job.hidden for job in staged], hplms), stack)
        except Exception as error:
            for hplm in hplms:
                stack.release(hplm)
            _refuse(staged, error)
            return None

    def _run(self, staged: StagedBatch) -> list[Tensor | Exception]:
        """Each job's logits. When a batch fails, its jobs run one by one, so that only the guilty one fails."""
        try:
            return list(staged.stack.run(staged.packed, staged.hplms))
        except Exception as error:
            if len(staged.jobs) == 1:
                return [error]
            LOGGER.warning("a batch of %d rows failed, running them one by one: %s", len(staged.jobs), error)
        return [self._run_alone(staged.stack, *pair) for pair in zip(staged.jobs, staged.hplms, strict=True)]

    def _run_alone(self, stack: UpperStack, job: Job, hplm: ReadyHplm) -> Tensor | Exception:
        try:
            return stack.run(stack.pack([job.hidden], [hplm]), [hplm])[0]
        except Exception as error:
            return error

    def _answer(self, jobs: list[Job], results: Sequence[Tensor | Exception]) -> None:
        for job, result in zip(jobs, results, strict=True):
            _respond(job, presentable(result) if isinstance(result, Exception) else _classified(job, result))


def _classified(job: Job, row_logits: Tensor) -> Answer | HplmError:
    try:
        return classification_answer(job.entry, row_logits, job.truncated)
    except Exception as error:
        return presentable(error)


def _respond(job: Job, answer: Answer | HplmError) -> None:
    """Answer one job; a caller that cannot be reached any more costs the others nothing."""
    try:
        job.respond(answer)
    except Exception:
        LOGGER.exception("an answer for %s could not be sent", job.entry.id)


def _refuse(jobs: Sequence[Job], reason: Exception) -> None:
    error = presentable(reason)
    for job in jobs:
        _respond(job, error)

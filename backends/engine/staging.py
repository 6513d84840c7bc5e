"""Stages chosen batches: first the leases, then the rows packed on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backends.adapters.slots import NoFreeSlotError
from backends.device_errors import is_out_of_memory
from backends.engine.answering import reject
from backends.engine.job import Job, Lease
from backends.engine.job_queue import JobQueue
from backends.engine.loading import Loading
from backends.engine.quarantine import Quarantine
from backends.engine.stack_protocol import Stack
from backends.engine.staged_batch import StagedBatch


class Stager:
    """Stages batches, one after the other, on one thread.

    Args:
        loading: Takes the leases.
        queue: Takes back the jobs that have no room.
        quarantine: Errors of the hPLMs that must not run.
        wait_for_release: Waits until a job in flight releases its lease; false if no batch is in flight.
    """

    def __init__(
        self, loading: Loading, queue: JobQueue, quarantine: Quarantine, wait_for_release: Callable[[], bool]
    ) -> None:
        self._loading = loading
        self._queue = queue
        self._quarantine = quarantine
        self._wait_for_release = wait_for_release

    def stage(self, jobs: Sequence[Job]) -> StagedBatch | None:
        """Lease and pack the jobs of a batch.

        A job that cannot be staged is answered with the reason. Jobs that no slot is free for are queued again.
        """
        stack = self._loading.stack_of(jobs[0].stack)
        leased: list[Job] = []
        for position, job in enumerate(jobs):
            self._queue.beat()
            if (error := self._quarantine.error(job.hplm_key)) is not None:
                reject([job], error)
                continue
            try:
                job.lease = self._lease(job)
                leased.append(job)
            except NoFreeSlotError:
                self._queue.put_back(jobs[position:])
                break
            except Exception as failure:
                reject([job], failure)
        return self._packed(stack, leased) if leased else None

    def _lease(self, job: Job) -> Lease:
        """Wait for a slot where pins taken ahead, or batches in flight, hold them all."""
        while True:
            try:
                return self._loading.lease(job)
            except NoFreeSlotError:
                if not self._loading.release_ahead() and not self._wait_for_release():
                    raise

    def _packed(self, stack: Stack, jobs: list[Job]) -> StagedBatch | None:
        """Pack all rows, or if that fails half of them; the other half is queued again.

        So memory that runs out costs no row, and a row that cannot be packed costs no other.
        """
        try:
            return StagedBatch(jobs, stack, stack.pack(jobs))
        except Exception as error:
            half = len(jobs) // 2
            if not half:
                reject(jobs, error)
                return None
            is_memory_short = is_out_of_memory(error)
        if is_memory_short:
            with self._queue.changed:
                self._queue.memory.note_failure(sum(job.num_tokens for job in jobs))
        self._queue.put_back(jobs[half:])
        return self._packed(stack, jobs[:half])

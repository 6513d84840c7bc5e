"""Runs a batch so that a failure costs only the jobs that cause it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from typing import Any

from backends.device_errors import DeviceLostError, client_error, is_out_of_memory
from backends.engine.job import Job
from backends.engine.stack_protocol import Outcome, SoFar, Stack
from backends.errors import HplmError

LOGGER = logging.getLogger(__name__)
Conclude = Callable[[Job, Outcome | HplmError], None]
"""Takes a job's outcomes, or the error that it ends with."""


class BatchRunner:
    """Runs one batch, and cuts it into halves as often as a part of it fails, down to single rows.

    Args:
        stack: Stack that computes the batch.
        jobs: All jobs of the batch.
        open_jobs: Those that nobody has answered meanwhile; only they run again after a failure.
        conclude: Takes the outcomes as soon as they are known.
        on_no_memory: Takes the number of tokens of each part that the device had no memory for.
    """

    def __init__(
        self,
        stack: Stack,
        jobs: Sequence[Job],
        open_jobs: Container[Job],
        conclude: Conclude,
        on_no_memory: Callable[[int], None],
    ) -> None:
        self._stack = stack
        self._jobs = jobs
        self._answerable = open_jobs
        self._conclude = conclude
        self._on_no_memory = on_no_memory
        self._open = set(jobs)
        self.faults: dict[Job, HplmError] = {}
        """Rows that fail even when they run alone, other than for want of memory; the caller ends them."""
        self.reruns: list[Sequence[Job]] = []

    def run(self, packed: Any) -> None:
        self._settle(self._jobs, *self._failure(self._jobs, packed))

    def _settle(self, jobs: Sequence[Job], error: HplmError, is_fault: bool) -> None:
        """Find the jobs of a part that are to end with its error; none where all have their outcomes."""
        left = self._left(jobs)
        if left and len(jobs) > 1:  # even one that is left has not run alone yet
            half = (len(left) + 1) // 2
            for part in (left[:half], left[half:]):
                if still := self._left(part):  # others may have been answered while the first part ran
                    self.reruns.append(still)
                    self._settle(still, *self._failure(still, None))
        elif left:
            self._open.remove(left[0])
            if is_fault:
                self.faults[left[0]] = error
            else:
                self._conclude(left[0], error)

    def _left(self, jobs: Sequence[Job]) -> list[Job]:
        return [job for job in jobs if job in self._open and job in self._answerable]

    def _failure(self, jobs: Sequence[Job], packed: Any) -> tuple[HplmError, bool]:
        """Run a part; returns the error of the jobs that are left without an outcome, and whether it is their fault.

        Only the caller runs parts of the part: in here, the error's traceback still holds the failed run's tensors.
        """
        try:
            self._stack.run(self._stack.pack(jobs) if packed is None else packed, self._emit)
        except DeviceLostError:
            raise
        except Exception as error:
            # Not the error itself: the record of the log would hold its tensors.
            LOGGER.warning("a batch of %d rows failed: %s", len(jobs), str(error))
            if is_out_of_memory(error):
                self._on_no_memory(sum(job.num_tokens for job in jobs))
            return client_error(error).with_traceback(None), not is_out_of_memory(error)
        return HplmError("the server computed no answer for this request"), True

    def _emit(self, job: Job, outcome: Outcome) -> None:
        if job not in self._open:
            return
        if not isinstance(outcome, SoFar):
            self._open.remove(job)
        self._conclude(job, outcome)

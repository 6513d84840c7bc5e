"""The queue in front of the stacks: jobs that wait, and the decisions about them, under one lock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.clock import now_us
from backends.device_errors import client_error
from backends.engine.answering import reject
from backends.engine.job import Job
from backends.engine.memory_limit import MemoryLimit
from backends.errors import HplmError, UnavailableError
from backends.heartbeat import BEAT_EVERY_S, Beat, no_beat
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.policies import Policy
from backends.scheduling.rejection import infeasible as infeasible_error
from backends.scheduling.rejection import late_waiting
from backends.scheduling.settings import Capacity
from backends.scheduling.waiting_room import WaitingRoom

LOGGER = logging.getLogger(__name__)
STOPPING = "the server is stopping"


@dataclass(frozen=True)
class Choice:
    """Jobs that make the next batch, and have left the queue; unless `is_final`, jobs that may be in it, and wait."""

    jobs: list[Job]
    is_final: bool


class JobQueue:
    """Admits, orders, chooses and rejects jobs.

    `changed` guards everything here, and in the serve loop too; it is notified of every change. `beat` is called while
    `wait_until` waits, and between the adapters that are loaded for a batch.
    """

    def __init__(self, policy: Policy, capacity: Capacity, admission: Admission[Job], beat: Beat = no_beat) -> None:
        self.beat = beat
        self._policy = policy
        self._admission = admission
        self.changed = threading.Condition()
        self.waiting: WaitingRoom[Job] = admission.waiting
        self.memory = MemoryLimit(capacity)
        self.is_closed = False
        self._num_seen = 0
        """Jobs that waited when a batch was last chosen."""

    @property
    def has_changed_since_choice(self) -> bool:
        return len(self.waiting) != self._num_seen

    def add(self, jobs: Sequence[Job], now: int) -> HplmError | None:
        """Admit the jobs of one request, all or none; returns why they are rejected.

        The caller holds the lock, and notifies of the change. A defect of admission is the request's answer: raised, it
        would end the server for all.
        """
        if self.is_closed:
            return UnavailableError(STOPPING)
        try:
            rejection = self._admission.admit(jobs, now)
        except Exception as error:
            LOGGER.exception("a request could be neither admitted nor rejected")
            return client_error(error)
        for job in jobs:
            if job.computing_us:  # also of those that are rejected: it was spent
                self._admission.accounts.spend(job.tenant, job.computing_us)
        return rejection

    def readd(self, jobs: Sequence[Job]) -> None:
        """Queue jobs that the stage before admitted: charged to their tenants, never rejected for want of room."""
        with self.changed:
            is_closed = self.is_closed
            if not is_closed:
                self._admission.readmit(jobs, now_us())
                self.changed.notify_all()
        if is_closed:
            reject(jobs, UnavailableError(STOPPING))

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Queue jobs in front of all others that were taken and could not run, or have to run once more."""
        for job in jobs:
            job.release_lease()
        with self.changed:
            is_closed = self.is_closed
            if not is_closed:
                self._admission.put_back(jobs, now_us())
                self.changed.notify_all()
        if is_closed:
            reject(jobs, UnavailableError(STOPPING))

    def close(self) -> list[Job]:
        """Admit nothing more; returns the jobs that waited."""
        with self.changed:
            self.is_closed = True
            left = self._admission.close()
            self.changed.notify_all()
        return left

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a condition under the lock, and reject each job as soon as its deadline passes."""
        while True:
            self.beat()
            with self.changed:
                late = self._admission.drop_late(now_us())
                if not late:
                    if is_so():
                        return
                    self.changed.wait(self._until_next_deadline_s())
            reject(late, late_waiting())

    def _until_next_deadline_s(self) -> float:
        """Return the time until the next deadline passes, or until the next beat."""
        return min(max(0.0, (self.waiting.next_deadline_us - now_us()) / 1e6), BEAT_EVERY_S)

    def choose(self, may_wait: Callable[[], bool]) -> Choice:
        """Choose the next batch. It is final, and taken off the queue, if it is full or the engine may not wait.

        The policy is not asked as long as the engine may wait for more and all jobs fit into one batch.
        Infeasible jobs of the batch are rejected, and those of answered requests dropped; both leave room for others.
        """
        while True:
            with self.changed:
                self._num_seen = len(self.waiting)
                if may_wait() and self._do_all_fit():
                    return Choice(list(self.waiting), is_final=False)
                chosen = self._select(now_us())
                if not chosen or (may_wait() and not self._is_full(chosen)):
                    return Choice([self.waiting[index] for index in chosen], is_final=False)
                unwanted = [index for index in chosen if not self.waiting[index].is_wanted()]
                wanted = [index for index in chosen if index not in unwanted]
                infeasible = self._admission.infeasible(wanted, now_us())
                if not unwanted and not infeasible:
                    jobs = self._admission.take_batch(chosen, now_us())
                    self.note_staged(jobs)
                    return Choice(jobs, is_final=True)
                dropped = [self.waiting[index] for index in (*unwanted, *infeasible)]
                self._admission.drop([*unwanted, *infeasible])
            reject(dropped, infeasible_error())  # requests that are answered take no notice

    def note_staged(self, jobs: Sequence[Job]) -> None:
        """Tell admission which batch runs next; none where nothing came of staging."""
        self._admission.batches.staged(BatchShape.of(jobs) if jobs else None, jobs[0].stack if jobs else None)

    def _do_all_fit(self) -> bool:
        """Whether the jobs that wait leave room in one batch, whatever the policy would choose."""
        capacity = self.memory.capacity
        has_room = len(self.waiting) < min(capacity.max_rows, capacity.max_adapters)
        return has_room and int(self.waiting.num_tokens.sum()) <= capacity.max_tokens

    def _is_full(self, chosen: Sequence[int]) -> bool:
        """Whether no waiting or coming job could still join; jobs of other stacks never could."""
        return len(chosen) >= self.memory.capacity.max_rows or len(chosen) < self.waiting.count_of_root_at(chosen[0])

    def _select(self, now: int) -> list[int]:
        try:
            chosen = self._policy.select(self.waiting, now, self.memory.capacity)
            _require_indices(chosen, len(self.waiting))
            return chosen
        except Exception:
            LOGGER.exception("the policy failed; the oldest job runs alone")
            return [0] if self.waiting else []


def _require_indices(chosen: Sequence[int], num_waiting: int) -> None:
    if len(set(chosen)) < len(chosen) or not all(0 <= index < num_waiting for index in chosen):
        raise ValueError(f"chose {len(chosen)} indices, not all different and below {num_waiting}")

"""How deep rows go that leave it to the load, such as rows that any number of students may answer.

It is chosen when their batch starts, by what waits then. Admission has predicted with the least depth, so its promises
hold whatever is chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.settling import Settleable
from backends.scheduling.student_count import DRAIN_US, Backlog, StudentCount
from backends.scheduling.waiting_room import Float64, Indices
from backends.stack_key import StackKey

LOGGER = logging.getLogger(__name__)


class Deepening(Settleable, Protocol):
    """A job whose depth is chosen."""

    depth: float


JobT = TypeVar("JobT", bound=Deepening)


class DepthChoice(Generic[JobT]):
    """Remembers for each stack what was chosen last, and gives the jobs of a batch their depths.

    Args:
        admission: Says what waits and what it takes; asked under its lock.
    """

    def __init__(self, admission: Admission[JobT]) -> None:
        self._admission = admission
        self._counts: dict[StackKey, StudentCount] = {}

    def choose(self, stack: StackKey, jobs: Sequence[JobT], depths: Sequence[float], now_us: int) -> None:
        """Set the depths of the jobs of a batch that starts now; their tenants pay for them.

        Args:
            stack: Where they run.
            jobs: The batch, which has left the queue.
            depths: What a job may be given, in ascending order, within its own limits.
            now_us: The time.
        """
        jobs = [job for job in jobs if job.deadline_us is None or job.deadline_us > now_us]  # late ones will not run
        if not any(job.least_depth < job.most_depth for job in jobs):
            return
        try:
            depth = depths[self._count(stack, jobs, depths, now_us) - 1]
        except Exception:
            LOGGER.exception("no depth could be chosen; rows get the least")
            return
        for job in jobs:
            chosen = _within(depth, job)
            self._admission.accounts.spend_depth(job, chosen)
            job.depth = chosen

    def _count(self, stack: StackKey, jobs: Sequence[JobT], depths: Sequence[float], now_us: int) -> int:
        before = self._counts.get(stack) or StudentCount.starting(len(depths))
        backlog = self._backlog(stack, jobs, depths, now_us)
        state = self._counts[stack] = before.next(backlog.pressure, now_us, self._idle_since_us(jobs))
        self._admission.batches.figures.student_count_changes += state.count != before.count
        return state.count

    def _idle_since_us(self, jobs: Sequence[JobT]) -> int | None:
        """Return when the last batch ended, if nothing was there to run next."""
        finished_us = self._admission.batches.finished_us
        arrived_us = self._admission.waiting.arrived_us
        first_us = min([job.arrived_us for job in jobs] + ([int(arrived_us.min())] if len(arrived_us) else []))
        return finished_us if finished_us is not None and finished_us < first_us else None

    def _backlog(self, stack: StackKey, jobs: Sequence[JobT], depths: Sequence[float], now_us: int) -> Backlog:
        """Return the batch, as one row, and behind it what waits."""
        admission, waiting = self._admission, self._admission.waiting
        costs, order = admission.costs_of(stack), self._order()
        tokens = waiting.num_tokens[order].astype(np.float64)
        is_of_stack = waiting.root[order] == waiting.number_of(stack)
        likely, least, most = (each[order] for each in (waiting.depth, waiting.least_depth, waiting.most_depth))

        def work_us(count: int) -> Float64:
            depth = depths[count - 1]
            batch_us = costs.predict_us(BatchShape.of(jobs, [_within(depth, job) for job in jobs]))
            passed = np.where(is_of_stack, np.clip(depth, least, most), likely)
            return np.append(batch_us, self._work_us(order, tokens, passed))

        overhead_us = admission.fill.overheads_us(np.arange(1.0, len(order) + 1), np.cumsum(tokens), costs.model)
        drained_us = now_us + DRAIN_US
        due_us = [drained_us if job.deadline_us is None else job.deadline_us for job in jobs]
        deadlines_us = waiting.deadline_us[order]
        due_behind_us = np.where(np.isinf(deadlines_us), drained_us, deadlines_us)
        due_behind_us = np.where(deadlines_us <= now_us, np.inf, due_behind_us)  # nothing helps rows that are late
        time_us: Float64 = np.array([min(due_us), *due_behind_us.tolist()], np.float64) - now_us
        return Backlog(work_us, np.append(0.0, overhead_us), time_us, admission.margin(costs))

    def _order(self) -> Indices:
        """Return the indices of what waits in about the order in which the policy runs it."""
        admission, waiting = self._admission, self._admission.waiting
        if admission.is_fair:
            return np.arange(len(waiting))
        ranks = waiting.num_tokens if admission.goes_by_length else waiting.deadline_us
        order: Indices = np.lexsort((ranks, ~waiting.within_share))
        return order

    def _work_us(self, order: Indices, tokens: Float64, depths: Float64) -> Float64:
        """Return what each row that waits adds to its batch."""
        waiting, passed = self._admission.waiting, depths * tokens
        works_us, stacks = np.empty(len(order)), waiting.root[order]
        for number in np.unique(stacks).tolist():
            of_stack, model = stacks == number, self._admission.costs_of(waiting.root_name(number)).model
            works_us[of_stack] = model.rows_us(1, passed[of_stack], passed[of_stack] * tokens[of_stack])
        return works_us


def _within(depth: float, job: Deepening) -> float:
    return min(max(depth, job.least_depth), job.most_depth)

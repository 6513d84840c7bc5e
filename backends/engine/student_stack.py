"""The stack of a root's students: runs the serve loop's jobs on `StudentLayers`.

A job's depth says how many students answer it; the rows of one batch may have different numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose
from typing import NamedTuple

import torch

from backends.adapters.bank import HplmArtifact
from backends.engine.answer_level import AnswerLevel
from backends.engine.job import Job
from backends.engine.packing import PackedRows
from backends.engine.stack_protocol import Done, Emit
from backends.engine.streams import Mark
from backends.engine.student_layers import ReadyStudents, StudentLayers, StudentRow
from backends.errors import HplmError
from backends.registry.entries import HplmEntry
from backends.stack_key import StackKey
from backends.student_levels import student_level

Load = Callable[[HplmEntry], HplmArtifact]


class StudentLease(NamedTuple):
    """A pinned hPLM."""

    layers: StudentLayers
    hplm: ReadyStudents

    def release(self) -> None:
        self.layers.release(self.hplm)


@dataclass
class StudentBatch:
    """Jobs whose rows lie packed on the device from the point `mark` of the copies on."""

    jobs: Sequence[Job]
    hplms: Sequence[ReadyStudents]
    rows: PackedRows | None
    """None once they have run: their memory is free for another try."""
    mark: Mark


class StudentStack:
    """Emits `Done` for each job.

    Args:
        key: Its name.
        layers: The students, slots and heads.
        depth: What one student costs, as a share of the root's upper layers.
        load: Reads an hPLM version's weights, with what it has for these students.
    """

    def __init__(self, key: StackKey, layers: StudentLayers, depth: float, load: Load) -> None:
        self.key = key
        self.layers = layers
        self.depths = tuple(count * depth for count in range(1, layers.shape.count + 1))
        self._load = load

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        self.layers.require_row(num_tokens, hidden_size)

    def holds(self, job: Job) -> bool:
        return self.layers.slots.holds(job.hplm_key)

    def lease(self, job: Job) -> StudentLease:
        lease = StudentLease(self.layers, self.layers.ready(job.hplm_key, partial(self._load, job.entry)))
        if not self._agrees(job, lease.hplm):
            lease.release()
            raise HplmError(f"what the registry says of the students of hPLM {job.entry.id!r} is not so")
        return lease

    def _agrees(self, job: Job, hplm: ReadyStudents) -> bool:
        """Whether the depths of a job stand for students that its hPLM has."""
        offered = job.entry.students
        return offered is not None and offered.best <= hplm.best and isclose(offered.depth, self.depths[0])

    def pack(self, jobs: Sequence[Job]) -> StudentBatch:
        hplms = [_hplm_of(job) for job in jobs]
        rows = [torch.from_numpy(job.hidden) for job in jobs]
        packed = self.layers.pack(rows, hplms, isolated=any(job.is_retried for job in jobs))
        return StudentBatch(jobs, hplms, packed, self.layers.copies.mark())

    def run(self, batch: StudentBatch, emit: Emit) -> None:
        packed, batch.rows = batch.rows, None
        if packed is None:
            raise HplmError("a batch ran twice")
        counts = [self._count(job.depth) for job in batch.jobs]
        columns = zip(batch.hplms, counts, [job.middle for job in batch.jobs], strict=True)
        with self.layers.computing(batch.mark):
            logits = self.layers.run(packed, [StudentRow(*column) for column in columns])
        for job, hplm, count, of_job in zip(batch.jobs, batch.hplms, counts, logits, strict=True):
            job.passed = job.depth
            emit(job, Done(of_job, _level(hplm, count)))

    def _count(self, depth: float) -> int:
        """Return how many students a depth stands for."""
        return round(depth / self.depths[0])


def _level(hplm: ReadyStudents, count: int) -> AnswerLevel:
    return AnswerLevel(student_level(count), hplm.temperatures[count - 1], is_reduced=count < hplm.best)


def _hplm_of(job: Job) -> ReadyStudents:
    if not isinstance(job.lease, StudentLease):
        raise HplmError(f"a row of {job.entry.id} was packed without a lease")
    return job.lease.hplm

"""The stack of all upper layers of an encoder: runs the serve loop's jobs on an `UpperStack`.

A job whose hPLM has a ladder may end between two layers; one that goes on keeps what was known of it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.engine.answer_level import AnswerLevel
from backends.engine.exits import Early, Exit
from backends.engine.job import Job
from backends.engine.packing import PackedRows
from backends.engine.stack import OnEarly, ReadyHplm, UpperStack
from backends.engine.stack_protocol import Done, Emit, SoFar
from backends.engine.streams import Mark
from backends.errors import HplmError
from backends.registry.entries import HplmEntry
from backends.stack_key import FULL, StackKey
from backends.wire import EARLY

Load = Callable[[HplmEntry], HplmArtifact]


class HplmLease(NamedTuple):
    """A pinned hPLM."""

    upper: UpperStack
    hplm: ReadyHplm

    def release(self) -> None:
        self.upper.release(self.hplm)


@dataclass
class EncoderBatch:
    """Jobs whose rows lie packed on the device from the point `mark` of the copies on."""

    jobs: Sequence[Job]
    hplms: Sequence[ReadyHplm]
    rows: PackedRows | None
    """None once they have run: their memory is free for another try."""
    mark: Mark


class EncoderStack:
    """Emits `Done` for each job, and `SoFar` before for one that was not sure enough after the lower layers.

    Args:
        key: Its name.
        upper: The layers, slots and heads.
        load: Reads an hPLM version's weights.
    """

    depths: Sequence[float] = ()

    def __init__(self, key: StackKey, upper: UpperStack, load: Load) -> None:
        self.key = key
        self.upper = upper
        self._load = load

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        self.upper.require_row(num_tokens, hidden_size)

    def holds(self, job: Job) -> bool:
        return self.upper.slots.holds(job.hplm_key)

    def lease(self, job: Job) -> HplmLease:
        lease = HplmLease(self.upper, self.upper.ready(job.hplm_key, partial(self._load, job.entry)))
        if job.level == EARLY and lease.hplm.ladder is None:
            lease.release()
            raise HplmError(f"the level {EARLY} of hPLM {job.entry.id!r} is damaged; {FULL} answers")
        return lease

    def pack(self, jobs: Sequence[Job]) -> EncoderBatch:
        hplms = [_hplm_of(job) for job in jobs]
        rows = [torch.from_numpy(job.hidden) for job in jobs]
        packed = self.upper.pack(rows, hplms, isolated=any(job.is_retried for job in jobs))
        return EncoderBatch(jobs, hplms, packed, self.upper.copies.mark())

    def run(self, batch: EncoderBatch, emit: Emit) -> None:
        exits = [_exit_of(job, hplm) for job, hplm in zip(batch.jobs, batch.hplms, strict=True)]
        left: set[int] = set()

        def on_early(found: Sequence[tuple[int, Early]]) -> None:
            left.update(index for index, early in found if early.leaves)
            for index, early in found:
                if early.leaves:
                    batch.jobs[index].passed = self._passed(exits[index])
                level = _early_level(batch.hplms[index], early)
                outcome = Done(early.logits, level) if early.leaves else SoFar(early.logits, level)
                # What is no number is no answer to fall back on.
                if early.leaves or early.confidence > 0:
                    emit(batch.jobs[index], outcome)

        # A job's lease ends with its early answer, while others of its batch may be computed beside its tokens.
        with self._pinned([hplm for hplm, each in zip(batch.hplms, exits, strict=True) if each is not None]):
            logits = self._logits(batch, exits, on_early)
        for index, job in enumerate(batch.jobs):
            if index not in left:
                job.passed = 1.0
                emit(job, Done(logits[index], _full_level(batch.hplms[index])))

    def _passed(self, leaving: Exit | None) -> float:
        return 1.0 if leaving is None else leaving.after / self.upper.num_layers

    @contextmanager
    def _pinned(self, hplms: Sequence[ReadyHplm]) -> Iterator[None]:
        with ExitStack() as pins:
            for hplm in hplms:
                pins.callback(self.upper.slots.release, self.upper.slots.pin_again(hplm.lease))
            yield

    def _logits(self, batch: EncoderBatch, exits: Sequence[Exit | None], on_early: OnEarly) -> list[Tensor]:
        rows, batch.rows = batch.rows, None
        if rows is None:
            raise HplmError("a batch ran twice")
        with self.upper.computing(batch.mark):
            return self.upper.run(rows, batch.hplms, [job.middle for job in batch.jobs], exits, on_early)


def _exit_of(job: Job, hplm: ReadyHplm) -> Exit | None:
    """Return where a row may leave the layers, by what its request asks for."""
    if hplm.ladder is None or job.level == FULL:
        return None
    early = hplm.ladder.early
    words = None if job.words is None else job.words.words.first_tokens.tolist()
    threshold = None if job.settles else early.threshold
    return Exit(early.after, early.head, early.temperature, threshold, words)


def _early_level(hplm: ReadyHplm, early: Early) -> AnswerLevel | None:
    if hplm.ladder is None:
        return None
    step = hplm.ladder.early
    return AnswerLevel(EARLY, step.temperature, is_doubtful=early.leaves and early.confidence < step.threshold)


def _full_level(hplm: ReadyHplm) -> AnswerLevel | None:
    return None if hplm.ladder is None else AnswerLevel(FULL, hplm.ladder.full_temperature)


def _hplm_of(job: Job) -> ReadyHplm:
    if not isinstance(job.lease, HplmLease):
        raise HplmError(f"a row of {job.entry.id} was packed without a lease")
    return job.lease.hplm

"""The stack of all upper layers of an encoder: runs the serve loop's jobs on an `UpperStack`.

A job whose hPLM has a ladder may end between two layers; one that goes on keeps what was known of it there. Where the
ladder has an ensemble, that is mixed with its last answer; where it prunes words, some of them stay behind. Some jobs
that end there stay in their batch, so that the audit can compare both answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.adapters.ladder import EarlyStep, Ladder
from backends.engine.answer_level import AnswerLevel
from backends.engine.audit import Audit
from backends.engine.ensemble import Mixture, mixed
from backends.engine.exits import NEVER, Early, Exit, are_same
from backends.engine.job import Job
from backends.engine.packing import PackedRows
from backends.engine.pruning import Prunable
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
        audit: Compares early answers with full ones.
    """

    depths: Sequence[float] = ()

    def __init__(self, key: StackKey, upper: UpperStack, load: Load, audit: Audit) -> None:
        self.key = key
        self.upper = upper
        self._load = load
        self._audit = audit

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
        exits = [self._exit_of(job, hplm) for job, hplm in zip(batch.jobs, batch.hplms, strict=True)]
        audited = {index: each for index, each in enumerate(exits) if each and self._is_audited(batch, index)}
        left: set[int] = set()
        compared: dict[int, Tensor] = {}
        mixtures: dict[int, Mixture] = {}
        kept: dict[int, float] = {}

        def on_early(found: Sequence[tuple[int, Early]]) -> None:
            for index, early in found:
                job, hplm = batch.jobs[index], batch.hplms[index]
                if index in audited and audited[index].lets_go(early.confidence):
                    early = early._replace(leaves=True)
                    if self._audit.mark(job):
                        compared[index] = early.logits
                level = self._early_level(job, hplm, early)
                if early.leaves:
                    left.add(index)
                    job.passed = self._passed(exits[index], float(index in audited))
                    emit(job, Done(early.logits, level))
                    continue
                if early.kept is not None:
                    kept[index] = early.kept
                if (mixture := self._mixture_of(job, hplm, early)) is not None:
                    mixtures[index] = mixture
                if job.entry.may_settle:
                    emit(job, SoFar(early.logits, level))

        # A job's lease ends with its early answer, while others of its batch may be computed beside its tokens.
        with self._pinned([hplm for hplm, each in zip(batch.hplms, exits, strict=True) if each is not None]):
            staying = [replace(audited[i], is_compared=True) if i in audited else each for i, each in enumerate(exits)]
            logits = self._logits(batch, staying, on_early)
        of_mixtures = mixed(logits, mixtures)
        for index, job in enumerate(batch.jobs):
            if index not in left:
                job.passed = self._passed(exits[index], kept.get(index, 1.0))
                emit(job, _last(logits[index], batch.hplms[index].ladder, of_mixtures.get(index), index in kept))
        for index, early_logits in compared.items():
            ladder = batch.hplms[index].ladder
            if ladder is not None and torch.isfinite(logits[index]).all():
                job = batch.jobs[index]
                is_same = are_same(early_logits, logits[index], audited[index], job.entry.labels)
                self._audit.note(job, ladder, is_same)

    def _is_audited(self, batch: EncoderBatch, index: int) -> bool:
        ladder = batch.hplms[index].ladder
        return ladder is not None and self._audit.takes(batch.jobs[index], ladder)

    def _exit_of(self, job: Job, hplm: ReadyHplm) -> Exit | None:
        """Return where a row may leave the layers, by what its request asks for."""
        if hplm.ladder is None or job.level == FULL:
            return None
        early = hplm.ladder.early
        words = None if job.words is None else job.words.words.first_tokens.tolist()
        threshold = None if job.settles else self._trusted_from(job, early)
        prunable = self._prunable(job, hplm.ladder)
        return Exit(early.after, early.head, early.temperature, threshold, words, early.scale, prunable=prunable)

    def _prunable(self, job: Job, ladder: Ladder) -> Prunable | None:
        """Return what a row may lose; nothing where the audit says that early answers have changed."""
        if ladder.pruning is None or job.marks is None or self._audit.has_failed(job.hplm_key):
            return None
        return Prunable(ladder.pruning.alpha, job.marks)

    def _early_level(self, job: Job, hplm: ReadyHplm, early: Early) -> AnswerLevel | None:
        if hplm.ladder is None:
            return None
        step = hplm.ladder.early
        is_doubtful = early.leaves and early.confidence < self._trusted_from(job, step)
        return AnswerLevel(EARLY, step.reported_temperature or step.temperature, is_doubtful)

    def _mixture_of(self, job: Job, hplm: ReadyHplm, early: Early) -> Mixture | None:
        """Return what the full answer is mixed with; nothing where the audit says that early answers have changed."""
        ladder = hplm.ladder
        if ladder is None or ladder.ensemble is None or self._audit.has_failed(job.hplm_key):
            return None
        return Mixture(early.logits, ladder, ladder.ensemble)

    def _trusted_from(self, job: Job, step: EarlyStep) -> float:
        """Return the least confidence of an early answer that stands for the full one."""
        return NEVER if self._audit.has_failed(job.hplm_key) else step.threshold

    def _passed(self, at: Exit | None, kept: float) -> float:
        """Return the share of the layers that a row passes of whose tokens this share passes those behind its exit."""
        early = 1.0 if at is None else at.after / self.upper.num_layers
        return early + kept * (1 - early)

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


def _last(full: Tensor, ladder: Ladder | None, mixture: Tensor | None, has_lost_words: bool) -> Done:
    """Return the outcome of a row that has passed all layers: the mixture where there is one."""
    if ladder is None:
        return Done(full)
    if has_lost_words and ladder.pruning is not None:
        return Done(full, AnswerLevel(FULL, ladder.pruning.temperature))
    if mixture is None or ladder.ensemble is None:
        return Done(full, AnswerLevel(FULL, ladder.full_temperature))
    return Done(mixture, AnswerLevel(FULL, ladder.ensemble.temperature))


def _hplm_of(job: Job) -> ReadyHplm:
    if not isinstance(job.lease, HplmLease):
        raise HplmError(f"a row of {job.entry.id} was packed without a lease")
    return job.lease.hplm

"""The stack of all upper layers of an encoder: runs the serve loop's jobs on an `UpperStack`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.device_errors import require_device
from backends.engine.job import Job
from backends.engine.packing import PackedRows
from backends.engine.stack import ReadyHplm, UpperStack
from backends.engine.stack_protocol import Done, Emit
from backends.engine.streams import Mark
from backends.errors import HplmError
from backends.registry.entries import HplmEntry
from backends.stack_key import StackKey

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
    """One batch passes all layers at once, so its only outcomes are `Done`.

    Args:
        key: Its name.
        upper: The layers, slots and heads.
        load: Reads an hPLM version's weights.
    """

    def __init__(self, key: StackKey, upper: UpperStack, load: Load) -> None:
        self.key = key
        self.upper = upper
        self._load = load

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        self.upper.require_row(num_tokens, hidden_size)

    def holds(self, job: Job) -> bool:
        return self.upper.slots.holds(job.hplm_key)

    def lease(self, job: Job) -> HplmLease:
        return HplmLease(self.upper, self.upper.ready(job.hplm_key, partial(self._load, job.entry)))

    def pack(self, jobs: Sequence[Job], count: int = 1) -> EncoderBatch:
        hplms = [_hplm_of(job) for job in jobs]
        rows = [torch.from_numpy(job.hidden) for job in jobs]
        packed = self.upper.pack(rows, hplms, isolated=any(job.is_retried for job in jobs))
        return EncoderBatch(jobs, hplms, packed, self.upper.copies.mark())

    def run(self, batch: EncoderBatch, emit: Emit) -> None:
        for job, logits in zip(batch.jobs, self._logits(batch), strict=True):
            emit(job, Done(logits))

    def _logits(self, batch: EncoderBatch) -> list[Tensor]:
        rows, batch.rows = batch.rows, None
        if rows is None:
            raise HplmError("a batch ran twice")
        self.upper.copies.wait(batch.mark)
        try:
            return self.upper.run(rows, batch.hplms, [job.middle for job in batch.jobs])
        except Exception:
            require_device(self.upper.device)
            # Kernels may still run, and read memory that the next copies are given.
            self.upper.copies.wait_for_computing()
            raise


def _hplm_of(job: Job) -> ReadyHplm:
    if not isinstance(job.lease, HplmLease):
        raise HplmError(f"a row of {job.entry.id} was packed without a lease")
    return job.lease.hplm

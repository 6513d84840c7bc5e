"""A batch between staging and answering: pinned adapters, packed rows, and how it runs whatever goes wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.engine.job import Job
from backends.engine.loading import release_all
from backends.engine.packing import PackedRows
from backends.engine.stack import ReadyHplm, UpperStack
from backends.engine.streams import Mark
from backends.errors import HplmError
from backends.memory import is_out_of_memory, told

LOGGER = logging.getLogger(__name__)

Result = Tensor | HplmError
Pinned = tuple[Job, ReadyHplm]


@dataclass(frozen=True)
class _OnDevice:
    """Packed rows, and the point in the copies from which they lie there."""

    rows: PackedRows
    mark: Mark


@dataclass
class StagedBatch:
    """Jobs whose adapters are pinned and whose rows are packed on the device."""

    jobs: list[Job]
    hplms: list[ReadyHplm]
    stack: UpperStack
    on_device: _OnDevice | None
    """None once they have run: their room is free for another try."""
    has_run: bool = False
    """Or else none of its jobs was in time."""

    @property
    def pinned(self) -> list[Pinned]:
        return list(zip(self.jobs, self.hplms, strict=True))

    def run(self) -> list[Tensor]:
        """Once: whatever comes of it, the packed rows are gone."""
        on_device, self.on_device = self.on_device, None
        if on_device is None:
            raise HplmError("a staged batch ran twice")
        self.stack.copies.wait(on_device.mark)
        try:
            return self.stack.run(on_device.rows, self.hplms, [job.middle for job in self.jobs])
        except Exception:
            # Parts of it may still be under way, and read memory that the next copies are given.
            self.stack.copies.wait_for_computing()
            raise

    def release(self) -> None:
        release_all((self.stack, hplm) for hplm in self.hplms)


def run_batch(staged: StagedBatch) -> list[Result]:
    """Each job's logits, or what went wrong with it.

    A batch that needs more memory than there is runs in halves; of any other only the guilty job shall fail.
    """
    stack, pinned = staged.stack, staged.pinned
    try:
        return _mended(stack, pinned, staged.run())
    except Exception as error:
        LOGGER.warning("a batch of %d rows failed and is run in parts: %s", len(pinned), str(error))
        if is_out_of_memory(error):
            parts = _halves(pinned)
        elif len(pinned) == 1:
            return [told(error)]
        else:
            parts = [[pair] for pair in pinned]
    # Only out here has the failed run let go of its tensors: the error's traceback held them.
    return [result for part in parts for result in _run_part(stack, part)]


def _halves(pinned: list[Pinned]) -> list[list[Pinned]]:
    """One row is tried again as it is."""
    half = (len(pinned) + 1) // 2
    return [part for part in (pinned[:half], pinned[half:]) if part]


def _run_part(stack: UpperStack, part: list[Pinned], apart: bool = False) -> list[Result]:
    """Of rows that are laid apart, the results are what they are."""
    try:
        results = StagedBatch(*unzipped(part), stack, packed_on_device(stack, part, apart)).run()
        return list(results) if apart else _mended(stack, part, results)
    except Exception as error:
        if len(part) == 1 or is_out_of_memory(error):
            return [told(error)] * len(part)
    return [result for pair in part for result in _run_part(stack, [pair], apart)]


def unzipped(pinned: Sequence[Pinned]) -> tuple[list[Job], list[ReadyHplm]]:
    return [job for job, _ in pinned], [hplm for _, hplm in pinned]


def packed_on_device(stack: UpperStack, pinned: Sequence[Pinned], apart: bool = False) -> _OnDevice:
    jobs, hplms = unzipped(pinned)
    rows = [torch.from_numpy(job.hidden) for job in jobs]
    return _OnDevice(stack.pack(rows, hplms, apart), stack.copies.mark())


def _mended(stack: UpperStack, pinned: Sequence[Pinned], results: Sequence[Tensor]) -> list[Result]:
    """Rows that came to no number run again, laid apart: one that overflows spoils those computed beside it."""
    if len(pinned) == 1 or _are_finite(results):
        return list(results)
    spoilt = [place for place, result in enumerate(results) if not _are_finite([result])]
    LOGGER.warning("%d of %d rows of a batch came to no number and run again", len(spoilt), len(pinned))
    again = _run_part(stack, [pinned[place] for place in spoilt], apart=True)
    mended = dict(zip(spoilt, again, strict=True))
    return [mended.get(place, result) for place, result in enumerate(results)]


def _are_finite(results: Sequence[Tensor]) -> bool:
    return bool(torch.cat([result.reshape(-1) for result in results]).isfinite().all())

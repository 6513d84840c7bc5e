"""The seam between the serve loop and everything that computes.

A batch is not the end of a job: a stack emits outcomes while it runs, also between two layers. For each job it emits
any number of `SoFar`, then exactly one of `Done` and `Passed`.

Usage:
    job.lease = stack.lease(job)
    batch = stack.pack([job])
    stack.run(batch, emit)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from backends.engine.answer_level import AnswerLevel
from backends.engine.job import Job, Lease
from backends.engine.passed import Passed
from backends.stack_key import StackKey


@dataclass(frozen=True)
class SoFar:
    """The best logits until now; the last ones are the job's fallback, sent if its deadline comes first."""

    logits: Tensor
    level: AnswerLevel | None = None


@dataclass(frozen=True)
class Done:
    """The final logits, in fp32 on the CPU: `[C]`, or `[L, C]` without pooling."""

    logits: Tensor
    level: AnswerLevel | None = None


Outcome = SoFar | Done | Passed
Emit = Callable[[Job, Outcome], None]
"""Takes outcomes from the thread that runs the batch, or its compute threads. A job may end as soon as its final
outcome is emitted, so the stack does not use its lease afterwards."""


class Stack(Protocol):
    """Computes jobs of one key. One thread leases and packs while another runs."""

    @property
    def key(self) -> StackKey: ...

    @property
    def depths(self) -> Sequence[float]:
        """The depths among which the load chooses for rows that leave it to it, ascending; none where no row does."""
        ...

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        """Raise `InvalidArgumentError` for a row that could not run, before it joins others in a batch."""
        ...

    def holds(self, job: Job) -> bool:
        """Whether the job's hPLM is resident, so that leasing it reads no file."""
        ...

    def lease(self, job: Job) -> Lease:
        """Load what the job needs and pin it; raises `NoFreeSlotError` where all slots are pinned."""
        ...

    def pack(self, jobs: Sequence[Job]) -> Any:
        """Lay out jobs that hold their leases; the result is this stack's own kind of batch.

        Jobs that are retried are laid out so that a row of NaN cannot spoil another.
        """
        ...

    def run(self, batch: Any, emit: Emit) -> None:
        """Run a batch of `pack`, once, each job as deep as it says by now.

        After an error, jobs without a final outcome may be packed and run again.

        Raises:
            DeviceLostError: Nothing can be computed in this process any more.
        """
        ...

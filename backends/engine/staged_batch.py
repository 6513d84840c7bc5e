"""A batch between staging and its last answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.engine.job import Job
from backends.engine.stack_protocol import Stack
from backends.trace import is_tracing


@dataclass(eq=False)
class StagedBatch:
    """Jobs that hold their leases, packed by their stack.

    Attributes:
        open_jobs: Jobs without a final outcome; the batch is in flight as long as there are any.
        spoilt_jobs: Jobs with NaN or infinity that ran beside others; they are retried together, once no job is open.
        is_isolated: Whether no row can spoil another.
        has_run: Whether the batch was computed; it is not if all of its jobs were late before.
        lacks_rows: Whether fewer rows ran than were staged.
    """

    jobs: Sequence[Job]
    stack: Stack
    packed: Any
    open_jobs: set[Job] = field(init=False)
    spoilt_jobs: list[Job] = field(init=False, default_factory=list)
    is_isolated: bool = field(init=False)
    has_run: bool = False
    lacks_rows: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.open_jobs = set(self.jobs)
        self.is_isolated = len(self.jobs) == 1 or any(job.is_retried for job in self.jobs)

    def leave_out(self, jobs: Sequence[Job]) -> None:
        """Run without jobs that have an outcome, whose slots others may get: the rest is packed anew."""
        left = set(jobs)
        self.jobs = [job for job in self.jobs if job not in left]
        self.packed, self.lacks_rows = None, True

    @property
    def trace_arguments(self) -> dict[str, int]:
        """All that the cost of the batch depends on, where a trace is written; else its rows."""
        if not is_tracing():
            return {"rows": len(self.jobs)}
        lengths = [job.num_tokens for job in self.jobs]
        squares = sum(length * length for length in lengths)
        hplms = len({job.hplm_key for job in self.jobs})
        return {"rows": len(lengths), "tokens": sum(lengths), "squares": squares, "hplms": hplms}

"""Ladders of simulated hPLMs: which rows leave the layers early, and when rows of a batch are answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgumentError
from builder.placement.simulated_job import Depths, SimulatedJob

_SEED = 11
_GUARD_US = 2_000
"""As the engine's: an answer at hand is sent this long before the deadline."""


class Answered(IntEnum):
    """How a row of a batch is answered."""

    FULL = 0
    EARLY = 1
    DOUBTFUL = 2


@dataclass(frozen=True)
class Exits:
    """One early head for all hPLMs.

    Attributes:
        share: Share of rows that are sure enough there.
        depth: Share of the layers that they have passed by then.
        may_settle: Whether a row that all layers would answer too late gets the answer of its exit.
    """

    share: float
    depth: float
    may_settle: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InvalidArgumentError(f"a share of rows that leave early is 0 to 1, not {self.share:g}")
        if not 0 < self.depth < 1:
            raise InvalidArgumentError(f"rows leave after a share of the layers between 0 and 1, not {self.depth:g}")

    @property
    def depths(self) -> Depths:
        likely = 1 - self.share * (1 - self.depth)
        return Depths(likely, self.depth if self.may_settle else likely, likely, self.depth)

    def leaving(self, count: int) -> NDArray[np.bool_]:
        """Draw which rows of a load are sure enough; the same for every policy."""
        return np.random.default_rng(_SEED).random(count) < self.share


class Answers(NamedTuple):
    """When each row of a batch is answered, and how."""

    answered_us: Sequence[int]
    levels: Sequence[int]

    @classmethod
    def of(cls, jobs: Sequence[SimulatedJob], exit_us: int, end_us: int) -> Answers:
        """Answer rows when they leave a batch, at `exit_us` or at its end.

        A row that goes on has its early answer at hand, which is sent just before its deadline if the batch still runs
        and the row may settle.
        """
        answers = [_answer_of(job, exit_us, end_us) for job in jobs]
        return cls([answered_us for answered_us, _ in answers], [level for _, level in answers])


def _answer_of(job: SimulatedJob, exit_us: int, end_us: int) -> tuple[int, Answered]:
    if job.leaves or job.settles:
        return exit_us, Answered.EARLY if job.leaves else Answered.DOUBTFUL
    if job.deadline_us is not None and job.may_settle:
        due_us = max(exit_us, job.deadline_us - _GUARD_US)
        if due_us < min(end_us, job.deadline_us):
            return due_us, Answered.DOUBTFUL
    return end_us, Answered.FULL

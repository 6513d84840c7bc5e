"""A request of a simulated load, as policies and admission see one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from backends.scheduling.cost_model import BatchShape
from backends.stack_key import FULL, StackKey

ROOT = StackKey("simulated")


class Depths(NamedTuple):
    """Shares of the upper layers that a row is likely to pass, has to pass, and may pass; as of the engine's jobs.

    `exit` is the share after which it may leave; it has to pass more where it may not settle.
    """

    likely: float = 1.0
    least: float = 1.0
    most: float = 1.0
    exit: float = 1.0


@dataclass(eq=False, slots=True)
class SimulatedJob:
    """`place` is its row of the load; it arrives where the upper half queues it, as a job of the engine does.

    `leaves` is known once it runs: whether it is sure enough at its exit. The depths are those of the engine's jobs;
    where `root` is a stack of students, `depth` is chosen once it runs.
    """

    place: int
    arrived_us: int
    hplm_key: int
    tenant: str
    num_tokens: int
    deadline_us: int | None
    leaves: bool = False
    depth: float = 1.0
    least_depth: float = 1.0
    most_depth: float = 1.0
    exit_depth: float = 1.0
    root: StackKey = ROOT
    settles: bool = False

    @property
    def kept(self) -> float:
        """Share of its tokens behind its exit: no words are pruned here."""
        return 1.0

    @property
    def passed(self) -> float:
        """Share of the layers that it passes when it runs."""
        if self.root.level != FULL:
            return self.depth
        return self.exit_depth if self.leaves or self.settles else 1.0

    @property
    def may_settle(self) -> bool:
        """Whether the answer of its exit may be sent, however sure that is."""
        return self.least_depth == self.exit_depth < 1.0

    def settle(self) -> bool:
        """Take the answer of the exit, if that may be."""
        if self.settles or not self.may_settle:
            return False
        self.depth, self.settles = self.least_depth, True
        return True

    def unsettle(self, depth: float) -> None:
        """Go on as before, when the row was likely to pass this share of the layers."""
        self.depth, self.settles = depth, False

    def is_late(self, now_us: int) -> bool:
        return self.deadline_us is not None and self.deadline_us <= now_us


def whole_shape(jobs: Sequence[SimulatedJob]) -> BatchShape:
    """Add up jobs that pass all layers: what `BatchShape.of` makes of them, in a third of the time."""
    lengths = [job.num_tokens for job in jobs]
    squares = sum([length * length for length in lengths])
    return BatchShape(len(jobs), float(sum(lengths)), float(squares), len({job.hplm_key for job in jobs}))

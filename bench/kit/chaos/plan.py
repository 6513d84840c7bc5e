"""Which faults strike in which order, drawn from a seed: the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from backends.engine.loop import LOOPS
from builder.export.model_names import LOWER, UPPER

TRITON = "tritonserver"
ENCODE = "encode"
"""The loop of `hplm_lower`."""


class Way(StrEnum):
    """How a fault strikes: `kill -9`, SIGSTOP, SIGSTOP for longer than Triton waits, or an error raised in a loop."""

    KILL = "kill"
    STOP = "stop"
    PAUSE = "pause"
    DEFECT = "defect"


@dataclass(frozen=True)
class Kind:
    """A way, and what it strikes: a stub of a model, or tritonserver."""

    way: Way
    target: str

    def __str__(self) -> str:
        return f"{self.way}-{self.target.removeprefix('hplm_')}"

    @property
    def hangs(self) -> bool:
        """Whether what it strikes stays there, and does nothing for a while at least."""
        return self.way in (Way.STOP, Way.PAUSE)


KINDS = (
    *(Kind(way, target) for way in (Way.KILL, Way.STOP) for target in (LOWER, UPPER, TRITON)),
    *(Kind(way, model) for way in (Way.DEFECT, Way.PAUSE) for model in (UPPER, LOWER)),
)
BY_NAME = {str(kind): kind for kind in KINDS}


@dataclass(frozen=True)
class Fault:
    """One fault to come.

    Attributes:
        kind: What happens.
        pause_s: How long the server has been whole by then.
        instance: Which of a model's stubs it strikes, modulo their number.
        loop: In which loop a defect is raised; empty for other faults.
    """

    kind: Kind
    pause_s: float
    instance: int
    loop: str

    def __str__(self) -> str:
        return f"{self.kind} {self.what}"

    @property
    def what(self) -> str:
        return f"loop {self.loop!r}" if self.loop else self.kind.target


def draw_plan(seed: int, count: int, pauses_s: tuple[float, float], kinds: Sequence[Kind] = KINDS) -> list[Fault]:
    """Draw so many faults; no kind comes more than once more often than another."""
    rng = random.Random(f"chaos {seed}")
    drawn: list[Kind] = []
    while len(drawn) < count:
        drawn += rng.sample(kinds, len(kinds))
    chosen = drawn[:count]
    rng.shuffle(chosen)
    return [Fault(kind, round(rng.uniform(*pauses_s), 3), rng.randrange(2), _loop(kind, rng)) for kind in chosen]


def _loop(kind: Kind, rng: random.Random) -> str:
    if kind.way is not Way.DEFECT:
        return ""
    return rng.choice(LOOPS) if kind.target == UPPER else ENCODE

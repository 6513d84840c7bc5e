"""The name of everything that computes: scheduling, costs and the engine tell stacks apart by it."""

from __future__ import annotations

from typing import NamedTuple

FULL, STUDENTS = "full", "students"


class StackKey(NamedTuple):
    """A run of shared layers: `stage` of a `level` of a root; the stage is 0 unless the upper layers are cut.

    The `edition` names the weights of a level that may be replaced while rows of the old ones run; a root has one.
    """

    root: str
    level: str = FULL
    stage: int = 0
    edition: str = ""

    def __str__(self) -> str:
        if self == StackKey(self.root):
            return self.root
        return "/".join([self.root, self.level, str(self.stage), *([self.edition] if self.edition else [])])

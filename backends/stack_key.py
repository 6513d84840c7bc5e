"""The name of everything that computes: scheduling, costs and the engine tell stacks apart by it."""

from __future__ import annotations

from typing import NamedTuple

FULL = "full"


class StackKey(NamedTuple):
    """A run of shared layers: `stage` of a `level` of a root; the stage is 0 unless the upper layers are cut."""

    root: str
    level: str = FULL
    stage: int = 0

    def __str__(self) -> str:
        if self.level == FULL and not self.stage:
            return self.root
        return f"{self.root}/{self.level}/{self.stage}"

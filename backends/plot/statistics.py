"""Counts of fragments by the level that answered them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from backends.plot.arrays import Levels


@dataclass(frozen=True)
class HitStatistics:
    """Counts per level name; sums of them are again statistics."""

    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, levels: Levels, level_names: Sequence[str]) -> HitStatistics:
        counts = np.bincount(levels, minlength=len(level_names)).tolist()
        return cls(dict(zip(level_names, counts, strict=True)))

    def __add__(self, other: HitStatistics) -> HitStatistics:
        merged = Counter(self.counts)
        merged.update(other.counts)
        return HitStatistics(dict(merged))

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def rates(self) -> dict[str, float]:
        """The share of every level; all zero where nothing was looked up."""
        return {name: count / max(1, self.total) for name, count in self.counts.items()}

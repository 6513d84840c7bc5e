"""Padded layouts of the TCB paper, which the benches compare with those that a server can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from backends.adapters.length_groups import length_groups
from backends.engine.layouts import LAYOUTS, Grid, MakeLayout, Sharing
from backends.engine.layouts.isolated import padded_grids

GROUP_COST_TOKENS = 128
"""Cost of one more group, in tokens: as many pass the layers in the time that the calls of one group take to start."""


@dataclass(frozen=True)
class Padded:
    """Every row is as long as the longest row of its batch (the paper's TNB)."""

    sharing: Sharing

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        return padded_grids(range(len(lengths)), slots, lengths, max(lengths), self.sharing)


@dataclass(frozen=True)
class Sorted:
    """Rows are sorted by length and cut into groups, each padded to its own longest row (the paper's TTB)."""

    sharing: Sharing

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        return [
            grid
            for group in length_groups(lengths, GROUP_COST_TOKENS)
            for grid in padded_grids(group, slots, lengths, max(lengths[index] for index in group), self.sharing)
        ]


ALL_LAYOUTS: Mapping[str, MakeLayout] = MappingProxyType({"padded": Padded, "sorted": Sorted, **LAYOUTS})

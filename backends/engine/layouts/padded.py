"""Rows padded to a common length: of the whole batch, or of groups of similar rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.adapters.length_groups import length_groups
from backends.engine.layouts.grid import Grid
from backends.engine.layouts.micro_batches import Sharing, shares
from backends.engine.layouts.tiles import WINDOW_STEP

GROUP_COST_TOKENS = 128
"""What one more group costs, in tokens: that many would pass the layers in the time that all calls take to start."""


@dataclass(frozen=True)
class Padded:
    """Every row is as long as the longest of its batch (the TCB paper's TNB)."""

    sharing: Sharing

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        return _padded(range(len(lengths)), slots, lengths, self.sharing)


@dataclass(frozen=True)
class Sorted:
    """Rows sorted by length and cut into groups, each padded to its own longest row (TTB)."""

    sharing: Sharing

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        groups = length_groups(lengths, GROUP_COST_TOKENS)
        return [grid for group in groups for grid in _padded(group, slots, lengths, self.sharing)]


@dataclass(frozen=True)
class Isolated:
    """Padded to whole windows, so that no row's window reaches into another: what is no number stays with its row."""

    sharing: Sharing

    def arrange(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Grid]:
        return _padded(range(len(lengths)), slots, lengths, self.sharing, WINDOW_STEP)


def _padded(
    rows: Sequence[int], slots: Sequence[int], lengths: Sequence[int], sharing: Sharing, step: int = 1
) -> list[Grid]:
    """To the length of the longest of these rows, or the next multiple of `step`."""
    longest = -(-max(lengths[index] for index in rows) // step) * step
    order = sorted(rows, key=lambda index: (slots[index], lengths[index]))
    padded = [longest] * len(lengths)
    return [_grid(share, lengths, longest) for share in shares(order, slots, padded, sharing)]


def _grid(order: Sequence[int], lengths: Sequence[int], longest: int) -> Grid:
    starts = [place * longest for place in range(len(order))]
    blocks = [(start, start + longest) for start in starts]
    return Grid.of(order, starts, [lengths[index] for index in order], longest * len(order), blocks)

"""Layouts: how the rows of a batch are laid out as tokens. All give the same answers.

Usage:
    for grid in LAYOUTS["ragged"](Sharing()).arrange(slots, lengths):
        attend = attention(grid, num_heads, head_size, dtype, device)
        # then the layers over tokens [grid.num_tokens, H], laid out as the grid says
"""

from backends.engine.layouts.attention import attention
from backends.engine.layouts.choice import LAYOUTS, MakeLayout, require_layout
from backends.engine.layouts.grid import Grid, Layout
from backends.engine.layouts.isolated import Isolated
from backends.engine.layouts.micro_batches import Sharing
from backends.engine.layouts.ragged import narrowed

__all__ = ["LAYOUTS", "Grid", "Isolated", "Layout", "MakeLayout", "Sharing", "attention", "narrowed", "require_layout"]

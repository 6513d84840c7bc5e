"""How the rows of a batch are laid out as tokens: five ways, all with the same answers.

Usage:
    for grid in layout_named("ragged", Sharing()).arrange(slots, lengths):
        attend = attention(grid, num_heads, dtype, device)
        # then the layers over tokens [grid.num_tokens, H] that lie as the grid says
"""

from backends.engine.layouts.attention import attention
from backends.engine.layouts.choice import LAYOUT_NAMES, layout_named
from backends.engine.layouts.grid import Grid, Layout
from backends.engine.layouts.micro_batches import Sharing
from backends.engine.layouts.padded import Isolated

__all__ = ["LAYOUT_NAMES", "Grid", "Isolated", "Layout", "Sharing", "attention", "layout_named"]

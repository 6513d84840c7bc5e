"""Random rows of several texts, padded to the longest, and the segment of each token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded_rows(lengths: Sequence[int], middle: int = 1) -> tuple[Tensor, Tensor]:
    """Draw the rows of texts of these lengths, 16 numbers wide, the first `middle` tokens of their first segment."""
    rows, segments = (
        torch.randn(len(lengths), max(lengths), 16),
        torch.zeros(len(lengths), max(lengths), dtype=torch.int),
    )
    for row, length in enumerate(lengths):
        segments[row, :length] = 2
        segments[row, :middle] = 1
    return rows, segments

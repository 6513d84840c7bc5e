"""What of a row's last states its head reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NO_POOLING = "none"
"""The head is asked about each token."""
HALVES = "halves"
"""Of a pair: the mean of the row, and how those of its two halves differ and agree."""
POOLED_STATES: Mapping[str, int] = MappingProxyType({"cls": 1, "mean": 1, NO_POOLING: 1, HALVES: 4})
"""How many states wide the head's input is."""

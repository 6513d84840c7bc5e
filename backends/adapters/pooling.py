"""Pooling: which of a row's last states its head reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

NO_POOLING = "none"
"""The head reads the state of each token."""
PAIR_POOLING = "halves"
"""The head reads the `pair_features` of a pair of texts."""
POOLED_STATES: Mapping[str, int] = MappingProxyType({"cls": 1, "mean": 1, NO_POOLING: 1, PAIR_POOLING: 4})
"""Width of the head's input, in states."""


def pair_features(whole: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Join a pair's mean state, and how the means of its two segments differ and agree.

    Shape:
        `[..., H]` each → `[..., 4·H]`
    """
    size = whole.shape[-1]
    agreement = size * functional.normalize(first, dim=-1) * functional.normalize(second, dim=-1)
    return torch.cat([whole, (first - second).abs(), agreement, first - second], dim=-1)

"""Pooling of padded rows, as training has them; `backends.engine.heads` pools packed rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from backends.adapters.pooling import NO_POOLING, PAIR_POOLING, pair_features

Pool = Callable[[Tensor, Tensor], Tensor]
"""Pools padded states in fp32.

Shape:
    states `[B, L, H]`, segments `[B, L]` → `[B, H]`; `[B, 4·H]` for pairs; `[B, L, H]` without pooling. Segments are 1
    for single texts and a pair's first text, 2 for its second, 0 for padding.
"""


def _pool_cls(states: Tensor, segments: Tensor) -> Tensor:
    return states[:, 0].float()


def _pool_mean(states: Tensor, segments: Tensor) -> Tensor:
    return _mean_where(segments > 0, states)


def _pool_pairs(states: Tensor, segments: Tensor) -> Tensor:
    first, second = (_mean_where(segments == segment, states) for segment in (1, 2))
    return pair_features(_pool_mean(states, segments), first, second)


def _keep_tokens(states: Tensor, segments: Tensor) -> Tensor:
    return states.float()


def _mean_where(is_counted: Tensor, states: Tensor) -> Tensor:
    weights = is_counted.float()
    summed = torch.einsum("blh,bl->bh", states.float(), weights)
    return summed / weights.sum(dim=1, keepdim=True).clamp(min=1)


POOL_FUNCTIONS: Mapping[str, Pool] = MappingProxyType(
    {"cls": _pool_cls, "mean": _pool_mean, PAIR_POOLING: _pool_pairs, NO_POOLING: _keep_tokens}
)

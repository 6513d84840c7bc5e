"""The adapters of a mixed batch: tokens sorted by slot, one pair of products per segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.adapters.slots import IDENTITY_SLOT, SlotBank
from backends.root.encoder import Adapt


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `end` of the packed batch use this slot."""

    slot: int
    start: int
    end: int


def segmented_bottleneck(states: Tensor, bank: SlotBank, layer: int, segments: Sequence[Segment]) -> Tensor:
    """Every token through its own hPLM's adapter.

    Semantics:
        y[t] = x[t] + up[s, l]·relu(down[s, l]·x[t]), s = slot of t's segment; y = x where s is the identity
    Shape:
        states: `[T, H]`; the segments cover 0..T in order.
    """
    adapted = torch.empty_like(states)
    for segment in segments:
        part = states[segment.start : segment.end]
        target = adapted[segment.start : segment.end]
        if segment.slot == IDENTITY_SLOT:
            target.copy_(part)
            continue
        inner = torch.addmm(bank.down_bias[segment.slot, layer], part, bank.down_weight[segment.slot, layer].T)
        torch.addmm(bank.up_bias[segment.slot, layer], inner.relu_(), bank.up_weight[segment.slot, layer].T, out=target)
        target += part
    return adapted


def layer_adapters(bank: SlotBank, num_layers: int, segments: Sequence[Segment]) -> list[Adapt]:
    """One `Adapt` per upper layer, for the shared stack."""

    def at(layer: int) -> Adapt:
        return lambda states: segmented_bottleneck(states, bank, layer, segments)

    return [at(layer) for layer in range(num_layers)]

"""Who attends to whom, before the softmax: what a root's upper layers may also learn to agree on with their model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from builder.construct.training.rows import PaddedRows


def score_losses(
    layers: Iterable[tuple[nn.Module, nn.Module]],
    states: Iterable[tuple[Tensor, Tensor]],
    rows: PaddedRows,
    num_heads: int,
) -> list[Tensor]:
    """Per upper layer MSE(student, teacher) / Var(teacher) of the scores between a text's own tokens.

    Shape: layers and the states that go into them as (student's, teacher's), states `[T, H]`
    """
    pairs = rows.mask[:, None, :, None] & rows.mask[:, None, None, :]  # (B, 1, L, L)
    chosen = pairs.expand(-1, num_heads, -1, -1)
    losses = []
    # No layer follows the last state.
    for (our_layer, their_layer), (ours, theirs) in zip(layers, states, strict=False):
        with torch.no_grad():
            target = _scores(their_layer, rows.pad(theirs), num_heads)[chosen]
        difference = _scores(our_layer, rows.pad(ours), num_heads)[chosen] - target
        losses.append(difference.square().mean() / target.var())
    return losses


def _scores(layer: nn.Module, hidden: Tensor, num_heads: int) -> Tensor:
    """Shape: `[B, L, H]` → `[B, heads, L, L]`."""
    rows, length, width = hidden.shape
    query, key, _ = layer.get_submodule("query_key_value")(hidden).chunk(3, dim=-1)
    heads = [part.view(rows, length, num_heads, width // num_heads).transpose(1, 2) for part in (query, key)]
    scores: Tensor = torch.matmul(heads[0], heads[1].transpose(-1, -2)) * (width // num_heads) ** -0.5
    return scores

"""The model that every peer serves: the layers of a whole BERT and a head, in plain PyTorch.

A batch is padded, with a mask, as all of these runtimes want it. Embeddings are not in it: tenants share them, which
spares the peers memory and swapping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.geometry import RootGeometry

NUM_LABELS = 3


class BertLayer(nn.Module):
    """Shape: hidden `[B, L, H]`, mask `[B, 1, 1, L]`, added to the attention's scores."""

    def __init__(self, geometry: RootGeometry) -> None:
        super().__init__()
        hidden, inner = geometry.hidden_size, geometry.intermediate_size
        self._num_heads = geometry.num_heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, geometry.layer_norm_eps)
        self.ffn_in = nn.Linear(hidden, inner)
        self.ffn_out = nn.Linear(inner, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, geometry.layer_norm_eps)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        heads = self.query_key_value(hidden).unflatten(-1, (3, self._num_heads, -1)).permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask)
        hidden = self.attention_norm(hidden + self.attention_output(context.transpose(1, 2).flatten(2)))
        out: Tensor = self.ffn_norm(hidden + self.ffn_out(functional.gelu(self.ffn_in(hidden))))
        return out


class Bert(nn.Module):
    """Shape: hidden `[B, L, H]`, mask `[B, 1, 1, L]` → logits `[B, NUM_LABELS]`."""

    def __init__(self, geometry: RootGeometry) -> None:
        super().__init__()
        layers = geometry.num_lower_layers + geometry.num_upper_layers
        self.layers = nn.ModuleList(BertLayer(geometry) for _ in range(layers))
        self.head = nn.Linear(geometry.hidden_size, NUM_LABELS)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden, mask)
        logits: Tensor = self.head(hidden[:, 0])
        return logits


def random_bert(geometry: RootGeometry, seed: int) -> Bert:
    """In fp32, with weights of the size that trained ones have."""
    generator = torch.Generator().manual_seed(seed)
    model = Bert(geometry).eval().requires_grad_(False)
    for weights in model.parameters():
        if weights.ndim == 2:
            weights.normal_(std=1 / math.sqrt(weights.shape[1]), generator=generator)
    return model


def padded(rows: Sequence[Tensor], length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows `[L, H]` as one batch of this length, and its mask."""
    hidden = torch.zeros(len(rows), length, rows[0].shape[-1], dtype=dtype)
    mask = torch.zeros(len(rows), 1, 1, length, dtype=dtype)
    for index, row in enumerate(rows):
        hidden[index, : len(row)] = row
        mask[index, ..., len(row) :] = torch.finfo(torch.float16).min
    return hidden, mask

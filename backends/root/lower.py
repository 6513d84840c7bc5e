"""The lower model: the vectors of a fragment of tokens, and how fragments become a row's hidden states.

`FragmentEncoder` is only run while tables are built; serving keeps only `Aggregation`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.encoder import EncoderLayer, fragment_attention
from backends.root.geometry import RootGeometry


class FragmentEncoder(nn.Module):
    """Lower layers over isolated fragments, with a gate per vector.

    Semantics:
        H = layers(embed(ids)), each attending to the fragment's own slots and to its sinks
        g = H · sigmoid(w·H + b) · [id > 0]
        Empty slots (id 0) are masked in attention, so (0, b, c) is the bi-gram and (0, b, 0) the uni-gram.
    Shape:
        ids: `[N, m]` int64, the fragment's slots from `first_slot` on; slots left out count as empty → g: `[N, m, H]`.
    """

    def __init__(self, geometry: RootGeometry) -> None:
        super().__init__()
        hidden = geometry.hidden_size
        embedded = geometry.embedding_size or hidden
        self.word_embeddings = zero_embedding(geometry.vocab_size, embedded)
        self.slot_embeddings = zero_embedding(geometry.n, embedded)
        self.embedding_norm = nn.LayerNorm(embedded, eps=geometry.layer_norm_eps)
        self.embedding_projection = nn.Identity() if geometry.embedding_size is None else nn.Linear(embedded, hidden)
        self.layers = nn.ModuleList(EncoderLayer(geometry, index) for index in range(geometry.num_lower_layers))
        # A pretrained layer rests much of its attention on the special tokens, and most fragments hold none.
        shape = (geometry.num_lower_layers, 2, geometry.num_sinks, hidden)
        if geometry.num_sinks:
            self.sinks = nn.Parameter(torch.zeros(shape))
        else:  # no file holds it, so it is filled here, also where the weights are only described
            self.register_buffer("sinks", torch.zeros(shape, device="cpu"), persistent=False)
        self.gate = nn.Linear(hidden, 1)
        self._num_heads = geometry.num_heads
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, ids: Tensor, first_slot: int = 0) -> Tensor:
        filled = ids > 0
        slots = self.slot_embeddings.weight[first_slot : first_slot + ids.shape[1]]
        hidden = self.embedding_projection(self.embedding_norm(self.word_embeddings(ids) + slots))
        # A wholly empty fragment attends to itself, or its softmax would be over nothing.
        attended = filled | ~filled.any(dim=1, keepdim=True)
        for layer, sinks in zip(self.layers, self.sinks, strict=True):
            hidden = layer(hidden, fragment_attention(self._num_heads, attended, sinks))
        gated: Tensor = hidden * torch.sigmoid(self.gate(hidden)) * filled[..., None]
        return gated


def zero_embedding(count: int, size: int) -> nn.Embedding:
    """Make an embedding that is to be filled.

    The random numbers of PyTorch's own would be for nothing. On the meta device, drawing them loads PyTorch's compiler,
    which takes a second.
    """
    return nn.Embedding(count, size, _weight=torch.zeros(count, size))


def sum_overlapping(gated: Tensor, centre: int) -> Tensor:
    """Sum each token's vectors from all the fragments that hold it.

    Semantics:
        u[i] = Σ_j g[i + centre - j, j].  Rows may lie back to back: a border fragment's outer slots are empty,
        hence zero, so nothing leaks from one row to the next.
    Shape:
        gated: `[T, n, H]` → `[T, H]`.
    """
    total = gated[:, centre]
    for slot in range(gated.shape[1]):
        shift = centre - slot  # the fragment that lies `shift` tokens to the right (left if negative)
        if shift > 0:
            total = total + functional.pad(gated[shift:, slot], (0, 0, 0, min(shift, len(gated))))
        elif shift < 0:
            total = total + functional.pad(gated[:shift, slot], (0, 0, min(-shift, len(gated)), 0))
    return total


class Aggregation(nn.Module):
    """Gives summed vectors their position and type.

    Semantics:
        h0 = LN(u + P2[position] + T2[type])
    Shape:
        summed: `[T, H]`, positions and types: `[T]` → `[T, H]`.
    """

    def __init__(self, geometry: RootGeometry) -> None:
        super().__init__()
        self.position_embeddings = zero_embedding(geometry.max_tokens, geometry.hidden_size)
        self.type_embeddings = zero_embedding(geometry.type_vocab_size, geometry.hidden_size)
        self.norm = nn.LayerNorm(geometry.hidden_size, eps=geometry.layer_norm_eps)

    def forward(self, summed: Tensor, positions: Tensor, types: Tensor) -> Tensor:
        placed: Tensor = self.norm(summed + self.position_embeddings(positions) + self.type_embeddings(types))
        return placed

"""One transformer layer for tokens in any shape.

The linear parts work on the last dimension only, so the same layer runs fragments `[N, n, H]`, padded rows
`[B, L, H]` and packed rows `[T, H]`; what differs is who attends to whom, and that is handed in. So is what the
tenants change: a layer offers every one of its linear products and residual sums to its adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.geometry import RootGeometry

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, query, key, value), the tensors each `[..., H]` → context `[..., H]`; layers are counted from 0."""

Projection = Literal["query_key_value", "attention_output", "ffn_in", "ffn_out"]
Site = Literal["attention", "output"]
"""The two residual sums of a layer: after the attention, and after the feed-forward part."""


def _gelu_new(states: Tensor) -> Tensor:
    return functional.gelu(states, approximate="tanh")


ACTIVATION_FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "gelu": functional.gelu,
        "gelu_new": _gelu_new,
        "relu": functional.relu,
        "silu": functional.silu,
        "tanh": torch.tanh,
    }
)


class LayerAdapter(Protocol):
    """The changes to one layer, for one hPLM or for each one's tokens of a mixed batch.

    Both may overwrite the first tensor of the two that belong to the layer (`outputs`, `states`) and return it.
    """

    def project(self, name: Projection, inputs: Tensor, outputs: Tensor) -> Tensor:
        """`outputs` of the shared linear layer `name` over `inputs`, with the change added."""
        ...

    def add_and_norm(self, site: Site, states: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
        """`norm(states + residual)`, with whatever stands at this site."""
        ...


class Unadapted:
    """The unchanged shared layer."""

    def project(self, name: Projection, inputs: Tensor, outputs: Tensor) -> Tensor:
        return outputs

    def add_and_norm(self, site: Site, states: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
        normed: Tensor = norm(states + residual)
        return normed


class EncoderLayer(nn.Module):
    """A BERT layer; `index` is its position among the lower or upper layers, for the attention.

    Semantics:
        a = LN(attention_output(attend(layer, q, k, v)) + hidden);  out = LN(ffn_out(f(ffn_in(a))) + a), each as adapted
    """

    def __init__(self, geometry: RootGeometry, index: int) -> None:
        super().__init__()
        self.index = index
        hidden, inner, eps = geometry.hidden_size, geometry.intermediate_size, geometry.layer_norm_eps
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=eps)
        self.ffn_in = nn.Linear(hidden, inner)
        self.ffn_out = nn.Linear(inner, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, eps=eps)
        self._activation = ACTIVATION_FUNCTIONS[geometry.activation]

    def forward(self, hidden: Tensor, attend: Attend, adapter: LayerAdapter | None = None) -> Tensor:
        adapter = adapter or Unadapted()
        fused = adapter.project("query_key_value", hidden, self.query_key_value(hidden))
        context = attend(self.index, *fused.chunk(3, dim=-1))
        attended = adapter.project("attention_output", context, self.attention_output(context))
        hidden = adapter.add_and_norm("attention", attended, hidden, self.attention_norm)
        inner = self._activation(adapter.project("ffn_in", hidden, self.ffn_in(hidden)))
        out = adapter.project("ffn_out", inner, self.ffn_out(inner))
        return adapter.add_and_norm("output", out, hidden, self.ffn_norm)


def padded_attention(num_heads: int, token_mask: Tensor) -> Attend:
    """Attention inside each row of a padded batch.

    Shape:
        token_mask: `[B, L]` bool, true for real tokens; query, key, value: `[B, L, H]`.
    """
    key_mask = token_mask[:, None, None, :]

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, length, hidden = query.shape
        split = (rows, length, num_heads, hidden // num_heads)
        heads = [states.view(split).transpose(1, 2) for states in (query, key, value)]
        context = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=key_mask)
        return context.transpose(1, 2).reshape(rows, length, hidden)

    return attend


def fragment_attention(num_heads: int, slot_mask: Tensor, sinks: Tensor) -> Attend:
    """Attention inside fragments of a few tokens: too small for a fused kernel, so written out.

    Semantics:
        Every slot attends to the filled slots of its own fragment, and to the sinks.
    Shape:
        slot_mask: `[N, n]` bool; sinks: keys and values `[2, S, H]`; query, key, value: `[N, n, H]`.
    """
    bias = torch.zeros(slot_mask.shape, device=slot_mask.device).masked_fill_(~slot_mask, float("-inf"))
    bias = functional.pad(bias, (sinks.shape[1], 0))[:, None, None, :]  # (N, 1, 1, S + n)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        fragments, slots, hidden = query.shape
        split = (fragments, -1, num_heads, hidden // num_heads)
        sink_key, sink_value = sinks.to(key.dtype)[:, None].expand(-1, fragments, -1, -1)
        key, value = torch.cat([sink_key, key], dim=1), torch.cat([sink_value, value], dim=1)
        query, key, value = (states.view(split).transpose(1, 2) for states in (query, key, value))  # (N, h, ·, d)
        scores = torch.matmul(query, key.transpose(-1, -2)).float() * (hidden // num_heads) ** -0.5 + bias
        context = torch.matmul(scores.softmax(dim=-1).to(value.dtype), value)
        return context.transpose(1, 2).reshape(fragments, slots, hidden)

    return attend

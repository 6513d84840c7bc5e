"""One transformer layer, whatever shape its tokens come in.

The linear parts work on the last dimension only, so the same layer runs fragments `[N, n, H]`, padded rows
`[B, L, H]` and packed rows `[T, H]`; what differs is who attends to whom, and that is handed in.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.geometry import RootGeometry

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(query, key, value), each `[..., H]` → context `[..., H]`."""

Adapt = Callable[[Tensor], Tensor]
"""The adapter of a layer: x `[..., H]` → x + up(relu(down(x)))."""


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    if name == "gelu_new":
        return lambda states: functional.gelu(states, approximate="tanh")
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu": functional.gelu,
        "relu": functional.relu,
        "silu": functional.silu,
    }
    return functions[name]


class EncoderLayer(nn.Module):
    """A BERT layer with room for one adapter.

    Semantics:
        x = attention_output(attend(q, k, v));  x = adapt(x);  a = LN(x + hidden);  out = LN(ffn(a) + a)
    """

    def __init__(self, geometry: RootGeometry) -> None:
        super().__init__()
        hidden, inner, eps = geometry.hidden_size, geometry.intermediate_size, geometry.layer_norm_eps
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=eps)
        self.ffn_in = nn.Linear(hidden, inner)
        self.ffn_out = nn.Linear(inner, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, eps=eps)
        self._activation = activation_function(geometry.activation)

    def forward(self, hidden: Tensor, attend: Attend, adapt: Adapt | None = None) -> Tensor:
        query, key, value = self.query_key_value(hidden).chunk(3, dim=-1)
        attended: Tensor = self.attention_output(attend(query, key, value))
        if adapt is not None:
            attended = adapt(attended)
        hidden = self.attention_norm(attended + hidden)
        inner = self._activation(self.ffn_in(hidden))
        out: Tensor = self.ffn_norm(self.ffn_out(inner) + hidden)
        return out


def padded_attention(num_heads: int, token_mask: Tensor) -> Attend:
    """Attention inside each row of a padded batch.

    Shape:
        token_mask: `[B, L]` bool, true for real tokens; query, key, value: `[B, L, H]`.
    """
    key_mask = token_mask[:, None, None, :]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, length, hidden = query.shape
        split = (rows, length, num_heads, hidden // num_heads)
        heads = [states.view(split).transpose(1, 2) for states in (query, key, value)]
        context = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=key_mask)
        return context.transpose(1, 2).reshape(rows, length, hidden)

    return attend


def fragment_attention(num_heads: int, slot_mask: Tensor) -> Attend:
    """Attention inside fragments of a few tokens: too small for a fused kernel, so written out.

    Shape:
        slot_mask: `[N, n]` bool; query, key, value: `[N, n, H]`.
    """
    bias = torch.zeros(slot_mask.shape, device=slot_mask.device).masked_fill_(~slot_mask, float("-inf"))
    bias = bias[:, None, None, :]  # (N, 1, 1, n)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        fragments, slots, hidden = query.shape
        split = (fragments, slots, num_heads, hidden // num_heads)
        query, key, value = (states.view(split).transpose(1, 2) for states in (query, key, value))  # (N, h, n, d)
        scores = torch.matmul(query, key.transpose(-1, -2)).float() * (hidden // num_heads) ** -0.5 + bias
        context = torch.matmul(scores.softmax(dim=-1).to(value.dtype), value)
        return context.transpose(1, 2).reshape(fragments, slots, hidden)

    return attend

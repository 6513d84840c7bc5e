"""The first weights of a narrow student: those of upper layers, of which only some channels are kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backends.root.geometry import RootGeometry

Channels = Tensor
"""Indices of the channels that are kept, ascending."""


def kept_channels(wide: int, narrow: int) -> Channels:
    """Choose channels at even distances; all of them where both are as wide."""
    return torch.arange(narrow) * wide // narrow


def selecting(wide: int, narrow: int) -> Tensor:
    """Return the map that keeps these channels: `[narrow, wide]`."""
    return torch.eye(wide)[kept_channels(wide, narrow)]


def narrowed_state(layer: nn.Module, wide: RootGeometry, narrow: RootGeometry) -> dict[str, Tensor]:
    """Cut the weights of a root's layer down to the sizes of a narrow one; whole attention heads are kept."""
    hidden = kept_channels(wide.hidden_size, narrow.hidden_size)
    inner = kept_channels(wide.intermediate_size, narrow.intermediate_size)
    size = wide.hidden_size // wide.num_heads
    heads = (size * kept_channels(wide.num_heads, narrow.num_heads)[:, None] + torch.arange(size)).flatten()
    query_key_value = torch.cat([heads + part * wide.hidden_size for part in range(3)])
    kept = {
        "query_key_value": (query_key_value, hidden),
        "attention_output": (hidden, heads),
        "attention_norm": (hidden,),
        "ffn_in": (inner, hidden),
        "ffn_out": (hidden, inner),
        "ffn_norm": (hidden,),
    }
    state = {}
    for name, tensor in layer.state_dict().items():
        outputs, *inputs = kept[name.split(".")[0]]
        cut = tensor[outputs.to(tensor.device)]
        state[name] = cut[:, inputs[0].to(tensor.device)] if cut.ndim == 2 else cut
    return state

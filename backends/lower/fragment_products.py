"""The products of the lower layers over fragments, packed in bf16; `int8_products.py` has those in int8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backends.root.encoder import EncoderLayer
from backends.root.geometry import RootGeometry
from backends.root.packed import FUSED, PackedLinear


@dataclass(frozen=True)
class Products:
    """What a layer multiplies.

    Attributes:
        query_key_value: Product that computes scaled queries, keys and values.
        attention_output: Product behind the attention; it adds its second argument.
        feed_forward: The feed-forward part; it adds its second argument.
    """

    query_key_value: Callable[[Tensor], Tensor]
    attention_output: Callable[[Tensor, Tensor], Tensor]
    feed_forward: Callable[[Tensor, Tensor], Tensor]


ProductsOf = Callable[[EncoderLayer, RootGeometry, torch.dtype], Products]


def packed_products(layer: EncoderLayer, geometry: RootGeometry, dtype: torch.dtype) -> Products:
    query_key_value, attention_output, ffn_in, ffn_out = (
        PackedLinear(weight.to(dtype), bias.to(dtype))
        for weight, bias in (
            with_scaled_queries(layer.query_key_value, geometry),
            *((linear.weight, linear.bias) for linear in (layer.attention_output, layer.ffn_in, layer.ffn_out)),
        )
    )
    fused = FUSED[geometry.activation]
    return Products(
        query_key_value, attention_output, lambda hidden, plus: ffn_out(ffn_in.activated(hidden, fused), plus)
    )


def with_scaled_queries(linear: nn.Linear, geometry: RootGeometry) -> tuple[Tensor, Tensor]:
    """Return weights and biases with the rows scaled that make queries, so that scores need no scaling."""
    hidden = geometry.hidden_size
    scales = torch.ones(linear.out_features)
    scales[:hidden] = (hidden // geometry.num_heads) ** -0.5
    return linear.weight * scales[:, None], linear.bias * scales

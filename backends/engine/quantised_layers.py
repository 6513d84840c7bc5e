"""The shared upper layers with their products quantised; attention, norms and adapters compute as without."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from backends.adapters.product import BatchLayer
from backends.engine.fused_layer import FusedLayer, FusedLayers
from backends.root.encoder import ACTIVATION_FUNCTIONS, EncoderLayer
from backends.root.int8_feed_forward import Int8FeedForward
from backends.root.int8_file import Smoothed, Smoothing
from backends.root.int8_linear import QuantisedLinear
from backends.root.rowwise_linear import ROWWISE, RowwiseLinear
from backends.root.upper import UpperLayers


def int8_layers(upper: UpperLayers, activation: str, dtype: torch.dtype, smoothing: Smoothing) -> FusedLayers:
    """Quantise layers in fp32 for the CPU; everything outside their products is in `dtype`."""
    return FusedLayers([_Int8Layer(layer, activation, dtype, smoothing) for layer in _layers(upper)])


def rowwise_layers(
    upper: UpperLayers,
    activation: str,
    products: Literal["fp8", "int8"],
    dtype: torch.dtype,
    device: torch.device,
    smoothing: Smoothing,
) -> FusedLayers:
    """Quantise layers in fp32 for a GPU; everything outside their products is in `dtype`."""
    kind = ROWWISE[products]
    return FusedLayers([_RowwiseLayer(layer, activation, kind, dtype, device, smoothing) for layer in _layers(upper)])


def _layers(upper: UpperLayers) -> list[EncoderLayer]:
    return [layer for layer in upper.layers if isinstance(layer, EncoderLayer)]


class _Int8Layer(FusedLayer):
    def __init__(self, layer: EncoderLayer, activation: str, dtype: torch.dtype, smoothing: Smoothing) -> None:
        first, last = layer.query_key_value, layer.attention_output
        super().__init__(
            layer.index,
            QuantisedLinear(first.weight, first.bias, dtype, smoothing=smoothing.get((layer.index, "query_key_value"))),
            QuantisedLinear(last.weight, last.bias, dtype),
            layer.attention_norm.to(dtype),
            layer.ffn_norm.to(dtype),
        )
        self._int8_feed_forward = Int8FeedForward(layer, activation, dtype, smoothing.get((layer.index, "ffn_in")))

    def _feed_forward(self, hidden: Tensor, adapter: BatchLayer, plus: Tensor | None) -> Tensor:
        if not (adapter.changes("ffn_in") or adapter.changes("ffn_out")):
            return self._int8_feed_forward(hidden, plus)
        # What adapters add comes first: then a block of tokens passes both products while it is in the cache.
        inner = adapter.project("ffn_in", hidden, hidden.new_zeros(len(hidden), self._int8_feed_forward.width))
        return adapter.project("ffn_out", inner, self._int8_feed_forward(hidden, plus, inner))


class _RowwiseLayer(FusedLayer):
    def __init__(
        self,
        layer: EncoderLayer,
        activation: str,
        kind: type[RowwiseLinear],
        dtype: torch.dtype,
        device: torch.device,
        smoothing: Smoothing,
    ) -> None:
        def quantised(linear: nn.Linear, smoothed: Smoothed | None = None) -> RowwiseLinear:
            channels = None if smoothed is None else smoothing.get((layer.index, smoothed))
            return kind(linear.weight, linear.bias, dtype, device, channels)

        products = quantised(layer.query_key_value, "query_key_value"), quantised(layer.attention_output)
        norms = (norm.to(device=device, dtype=dtype) for norm in (layer.attention_norm, layer.ffn_norm))
        super().__init__(layer.index, *products, *norms)
        self._ffn_in, self._ffn_out = quantised(layer.ffn_in, "ffn_in"), quantised(layer.ffn_out)
        self._activation = ACTIVATION_FUNCTIONS[activation]

    def _feed_forward(self, hidden: Tensor, adapter: BatchLayer, plus: Tensor | None) -> Tensor:
        inner = self._activation(adapter.project("ffn_in", hidden, self._ffn_in(hidden)))
        return adapter.project("ffn_out", inner, self._ffn_out(inner, plus))

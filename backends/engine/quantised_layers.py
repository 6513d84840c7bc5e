"""The shared upper layers with their products in int8; attention, norms and adapters compute as without."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backends.adapters.product import BatchAdapters, BatchLayer
from backends.engine.residuals import residual_of
from backends.root.encoder import ACTIVATION_FUNCTIONS, Attend, EncoderLayer
from backends.root.quantised import AFTER, CENTRED, QuantisedLinear, Range, blocks
from backends.root.upper import UpperLayers


class QuantisedLayers:
    """Quantised copies of layers in fp32.

    Args:
        upper: The layers.
        activation: Their activation.
        dtype: Data type of everything outside the products.
    """

    def __init__(self, upper: UpperLayers, activation: str, dtype: torch.dtype) -> None:
        layers = [layer for layer in upper.layers if isinstance(layer, EncoderLayer)]
        self._layers = [_QuantisedLayer(layer, activation, dtype) for layer in layers]

    def __call__(self, hidden: Tensor, attend: Attend, adapters: BatchAdapters) -> Tensor:
        hidden = adapters.enter(hidden)
        for index, layer in enumerate(self._layers):
            hidden = layer(hidden, attend, adapters.layer(index))
        return hidden


class _QuantisedLayer:
    """Computes what `EncoderLayer` computes."""

    def __init__(self, layer: EncoderLayer, activation: str, dtype: torch.dtype) -> None:
        def quantised(linear: nn.Linear, inputs: Range = CENTRED) -> QuantisedLinear:
            return QuantisedLinear(linear.weight, linear.bias, dtype, inputs)

        self._index = layer.index
        self._query_key_value = quantised(layer.query_key_value)
        self._attention_output = quantised(layer.attention_output)
        self._ffn_in, self._ffn_out = quantised(layer.ffn_in), quantised(layer.ffn_out, AFTER[activation])
        self._attention_norm, self._ffn_norm = layer.attention_norm.to(dtype), layer.ffn_norm.to(dtype)
        self._activation = ACTIVATION_FUNCTIONS[activation]

    def __call__(self, hidden: Tensor, attend: Attend, adapter: BatchLayer) -> Tensor:
        fused = adapter.project("query_key_value", hidden, self._query_key_value(hidden))
        context = attend(self._index, *fused.chunk(3, dim=-1))
        inside, after = residual_of(adapter, "attention", hidden)
        attended = adapter.project("attention_output", context, self._attention_output(context, inside))
        hidden = adapter.add_and_norm("attention", attended, after, self._attention_norm)
        inside, after = residual_of(adapter, "output", hidden)
        return adapter.add_and_norm("output", self._feed_forward(hidden, adapter, inside), after, self._ffn_norm)

    def _feed_forward(self, hidden: Tensor, adapter: BatchLayer, plus: Tensor | None) -> Tensor:
        if adapter.changes("ffn_in") or adapter.changes("ffn_out"):
            inner = self._activation(adapter.project("ffn_in", hidden, self._ffn_in(hidden)))
            return adapter.project("ffn_out", inner, self._ffn_out(inner, plus))
        outputs = torch.empty_like(hidden)
        for block in blocks(len(hidden)):
            states = self._ffn_in.inputs.quantised(hidden[block].to(torch.float32, copy=True), hidden.dtype)
            inner = self._activation(self._ffn_in.multiply_in_fp32(states))
            states = self._ffn_out.inputs.quantised(inner, hidden.dtype)
            self._ffn_out.multiply(states, outputs[block], None if plus is None else plus[block])
        return outputs

"""The feed-forward part of a layer in int8: what stands between its two products is quantised as it is made."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.root.encoder import ACTIVATION_FUNCTIONS, EncoderLayer
from backends.root.int8_linear import AFTER, Quantised, QuantisedLinear, blocks


class Int8FeedForward:
    """Both products of a feed-forward part, and the activation between them.

    Args:
        layer: Its weights, in fp32.
        activation: Name of the activation.
        dtype: Data type of inputs and outputs.
        smoothing: That of the first product's inputs.
    """

    def __init__(
        self, layer: EncoderLayer, activation: str, dtype: torch.dtype, smoothing: Tensor | None = None
    ) -> None:
        into, out_of = layer.ffn_in, layer.ffn_out
        self._into = QuantisedLinear(into.weight, into.bias, dtype, smoothing=smoothing)
        self._out_of = QuantisedLinear(out_of.weight, out_of.bias, dtype, AFTER[activation])
        self._activation, self._dtype = activation, dtype

    @property
    def width(self) -> int:
        """Width between the products."""
        return self._into.width

    def __call__(self, hidden: Tensor, plus: Tensor | None, inner: Tensor | None = None) -> Tensor:
        """Pass states through both products, a block of tokens at a time, which stays in the cache.

        Args:
            hidden: States of this part.
            plus: What is added to the results.
            inner: What is added in front of the activation; it is overwritten with what that returns.

        Shape: hidden, plus `[T, H]`, inner `[T, width]` → `[T, H]`
        """
        outputs = torch.empty_like(hidden)
        for block in blocks(len(hidden)):
            states = self._activated(self._into.quantised(hidden[block]), _rows(inner, block))
            self._out_of.multiply(states, outputs[block], _rows(plus, block))
        return outputs

    def _activated(self, inputs: Quantised, inner: Tensor | None) -> Quantised:
        """Return what the activation makes of the product and `inner`, quantised; `inner` becomes it."""
        if self._activation == "gelu":
            return self._into.multiply_through_gelu(inputs, inner, self._out_of.inputs)
        states = torch.empty(len(inputs.scales), self.width, dtype=self._dtype)
        self._into.multiply(inputs, states, inner)
        activated = ACTIVATION_FUNCTIONS[self._activation](states)
        if inner is not None:
            inner.copy_(activated)
        return self._out_of.quantised(activated)


def _rows(states: Tensor | None, block: slice) -> Tensor | None:
    return None if states is None else states[block]

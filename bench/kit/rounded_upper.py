"""Shared layers that round as products in int8 do, to tune adapters against what will serve them.

Gradients pass the rounding of states as if it were not there; the weights do not learn.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.encoder import EncoderLayer
from backends.root.int8_file import Smoothed, Smoothing
from backends.root.int8_linear import AFTER, CENTRED, Quantised, Range, quantised_weight
from backends.root.upper import UpperLayers


class RoundedLinear(nn.Linear):
    """A linear layer whose weights, and inputs token by token, are rounded to the levels of int8.

    Shape: `[..., in]` → `[..., out]`, in fp32.
    """

    def __init__(self, linear: nn.Linear, inputs: Range, smoothing: Tensor | None) -> None:
        super().__init__(linear.in_features, linear.out_features)
        values, scales = quantised_weight(linear.weight, smoothing)
        self.weight = nn.Parameter(values * scales[:, None], requires_grad=False)
        self.bias = nn.Parameter(linear.bias.detach().float(), requires_grad=False)
        self._inputs = inputs
        divided = torch.ones(linear.in_features) if smoothing is None else smoothing.reciprocal()
        self.register_buffer("_divided", divided, persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):
            smooth = states.float() * self.get_buffer("_divided")
            # Only a CPU quantises as the engine does.
            quantised = self._inputs.quantised(smooth.detach().flatten(0, -2).cpu())
            rounded = dequantised(self._inputs, quantised).to(smooth.device).view_as(smooth)
            return functional.linear(smooth + (rounded - smooth).detach(), self.weight, self.bias)


def dequantised(inputs: Range, quantised: Quantised) -> Tensor:
    """Return the states that quantised ones stand for, in fp32."""
    return (quantised.values.float() - inputs.zero_point) * quantised.scales[:, None] + (inputs.lowest or 0.0)


def rounded_upper(upper: UpperLayers, activation: str, smoothing: Smoothing) -> UpperLayers:
    """Let the products of layers round; the layers are changed and returned."""
    for layer in upper.layers:
        assert isinstance(layer, EncoderLayer)

        def rounded(linear: nn.Linear, inputs: Range = CENTRED, smoothed: Smoothed | None = None) -> RoundedLinear:
            channels = None if smoothed is None else smoothing.get((layer.index, smoothed))  # noqa: B023
            return RoundedLinear(linear, inputs, channels)

        layer.query_key_value = rounded(layer.query_key_value, smoothed="query_key_value")
        layer.attention_output = rounded(layer.attention_output)
        layer.ffn_in = rounded(layer.ffn_in, smoothed="ffn_in")
        layer.ffn_out = rounded(layer.ffn_out, AFTER[activation])
    return upper

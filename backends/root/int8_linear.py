"""Linear layers in int8: weights quantised per output channel, inputs per token, while they run.

The sums of a product are exact integers, so a token's results do not depend on the tokens beside it. A token with NaN
or infinity spoils itself only, through its scale. Products read unsigned inputs: those that processors with VNNI
multiply at twice the speed of bf16.

Older processors with AVX2 multiply them at about twice the speed of fp32. They add the products of two neighbouring
inputs in 16 bits, which cut off what does not fit, so there the scales of weights leave room for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

BLOCK_TOKENS = 256
"""Tokens that are quantised, multiplied and scaled back at once, so that they stay in the cache."""
_LEVELS = 127
# Half a level more than this would be 255, beyond which an unsigned byte begins again at 0.
_ONE_SIDED_LEVELS = 254
# A float of this size has no bits left for fractions: adding it rounds, and its last byte is the integer.
_ROUNDING = 1.5 * 2**23


def int8_instructions() -> Literal["VNNI", "AVX2"] | None:
    """Return the best instructions that this machine's processor has for products in int8.

    PyTorch knows the VNNI of AVX-512 only; processors with AVX-VNNI count as AVX2.
    """
    if torch.cpu._is_vnni_supported():
        return "VNNI"
    return "AVX2" if torch.cpu._is_avx2_supported() else None


def _weight_scales(weight: Tensor) -> Tensor:
    """Return a scale for each output, by its largest weight, or by the largest sum of two that are added in 16 bits.

    Shape: weight `[out, in]` → `[out]`
    """
    if int8_instructions() == "VNNI":
        largest = weight.abs().amax(dim=1)
    else:
        filled = functional.pad(weight, (0, weight.shape[1] % 2))
        even, odd = filled[:, ::2], filled[:, 1::2]
        positive = (even.clamp_min(0) + odd.clamp_min(0)).amax(dim=1)
        largest = torch.maximum(positive, -(even.clamp_max(0) + odd.clamp_max(0)).amin(dim=1))
    return (largest / _LEVELS).clamp_min_(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True)
class Range:
    """Where a layer's inputs lie.

    Semantics:
        state = scale · (value - zero_point) + lowest

    Attributes:
        lowest: Smallest value that inputs can have; None where they spread around zero.
    """

    lowest: float | None = None

    @property
    def zero_point(self) -> int:
        return _LEVELS + 1 if self.lowest is None else 0

    def quantised(self, states: Tensor, dtype: torch.dtype) -> Quantised:
        """Quantise states `[T, n]` in fp32, which are overwritten; scales are exact in `dtype`."""
        highest = states.amax(-1, keepdim=True)
        if self.lowest is None:
            scales = torch.maximum(highest, states.amin(-1, keepdim=True).neg_()).div_(_LEVELS).to(dtype)
            rounded = states.mul_(scales.float().reciprocal()).add_(self.zero_point + _ROUNDING)
        else:
            scales = highest.sub_(self.lowest).div_(_ONE_SIDED_LEVELS).to(dtype)
            per_level = scales.float().reciprocal()
            # The offset is no integer: rounded together with the states, its error differs from channel to channel.
            rounded = torch.addcmul(per_level * -self.lowest, states, per_level, out=states).add_(_ROUNDING)
        return Quantised(rounded.view(torch.int32).to(torch.uint8), scales)

    def restored(self, quantised: Quantised) -> Tensor:
        """Return the states that quantised ones stand for, in fp32."""
        return (quantised.values.float() - self.zero_point) * quantised.scales.float() + (self.lowest or 0.0)


CENTRED = Range()
AFTER: Mapping[str, Range] = MappingProxyType(
    {"gelu": Range(-0.17), "gelu_new": Range(-0.1701), "relu": Range(0.0), "silu": Range(-0.2794)}
)
"""Range of what each activation returns, in bf16 too: a value below it would wrap around to the highest level."""


@dataclass(frozen=True)
class Quantised:
    """Shape: values `[T, n]` uint8; scales `[T, 1]`."""

    values: Tensor
    scales: Tensor


def quantised_weight(weight: Tensor, smoothing: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Quantise a weight, multiplied by its inputs' smoothing, with a scale for each output.

    Shape: weight `[out, in]`, smoothing `[in]` → `[out, in]` int8, `[out]`
    """
    weight = weight.detach().float()
    if smoothing is not None:
        weight = weight * smoothing
    scales = _weight_scales(weight)
    return (weight / scales[:, None]).round_().to(torch.int8), scales


class QuantisedLinear:
    """A linear layer with weights in int8, in the order of the matrix product.

    Args:
        weight: `[out, in]`, in fp32.
        bias: `[out]`.
        dtype: Data type of inputs and outputs.
        inputs: Range of the inputs.
        smoothing: What inputs are divided by before they are quantised, `[in]`.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        dtype: torch.dtype,
        inputs: Range = CENTRED,
        smoothing: Tensor | None = None,
    ) -> None:
        values, scales = quantised_weight(weight, smoothing)
        sums = values.sum(dim=1, dtype=torch.float32) * scales
        self.inputs = inputs
        self._divided = None if smoothing is None else smoothing.reciprocal()
        self._dtype = dtype
        self._values = torch.ops.onednn.qlinear_prepack(values, None)
        self._scales = scales
        self._zeros = torch.zeros(len(scales), dtype=torch.int64)
        # What the zero point adds to each sum is taken away inside the product.
        self._correction = -inputs.zero_point * sums if inputs.zero_point else None
        self._bias = bias.detach().float() + (inputs.lowest or 0.0) * sums
        self._bias_in_dtype = self._bias.to(dtype)

    def __call__(self, states: Tensor, plus: Tensor | None = None) -> Tensor:
        """Multiply states `[T, in]`; `plus` is added to the result."""
        outputs = states.new_empty(len(states), len(self._scales))
        for block in blocks(len(states)):
            self.multiply(self.quantised(states[block]), outputs[block], None if plus is None else plus[block])
        return outputs

    def quantised(self, states: Tensor) -> Quantised:
        """Quantise inputs of this layer, `[T, in]`."""
        copied = states.to(torch.float32, copy=True)
        return self.inputs.quantised(copied if self._divided is None else copied.mul_(self._divided), self._dtype)

    def multiply(self, inputs: Quantised, outputs: Tensor, plus: Tensor | None = None) -> None:
        """Multiply quantised states into `outputs`, of this layer's data type."""
        product = self._product(inputs, self._dtype)
        if plus is None:
            torch.addcmul(self._bias_in_dtype, product, inputs.scales, out=outputs)
        else:
            torch.addcmul(plus, product, inputs.scales, out=outputs).add_(self._bias_in_dtype)

    def multiply_in_fp32(self, inputs: Quantised) -> Tensor:
        product = self._product(inputs, torch.float32)
        return torch.addcmul(self._bias, product, inputs.scales.float(), out=product)

    def _product(self, inputs: Quantised, dtype: torch.dtype) -> Tensor:
        """Return the product without its tokens' scales and without the bias."""
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            *(inputs.values, 1.0, 0),
            *(self._values, self._scales, self._zeros),
            *(self._correction, 1.0, 0, dtype),
            *("none", [], ""),
        )
        return product


def blocks(num_tokens: int) -> Iterator[slice]:
    """Cut tokens into blocks that stay in the cache."""
    return (slice(start, start + BLOCK_TOKENS) for start in range(0, num_tokens, BLOCK_TOKENS))

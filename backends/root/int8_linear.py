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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from backends.kernels.compiling import memory_of
from backends.kernels.int8 import (
    gelu_and_quantise_above,
    quantise,
    quantise_above,
    rescale,
)
from backends.root.int8_instructions import int8_instructions

BLOCK_TOKENS = 256
"""Tokens that are quantised, multiplied and scaled back at once, so that they stay in the cache."""
_LEVELS = 127
_QUANTISED_ROWS = 256
"""Outputs of a weight that are quantised at once: what is made on the way stays in the cache."""


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

    def quantised(self, states: Tensor, factors: Tensor | None = None) -> Quantised:
        """Quantise states `[T, n]`; channels around zero are multiplied by their factors first."""
        found = Quantised.empty(states)
        if self.lowest is None:
            factors = states.new_ones(states.shape[1], dtype=torch.float32) if factors is None else factors
            quantise(memory_of(states.contiguous()), factors.numpy(), *found.arrays())
        else:
            quantise_above(memory_of(states.contiguous()), self.lowest, *found.arrays())
        return found


CENTRED = Range()
AFTER: Mapping[str, Range] = MappingProxyType(
    {"gelu": Range(-0.17), "gelu_new": Range(-0.1701), "relu": Range(0.0), "silu": Range(-0.2794)}
)
"""Range of what each activation returns, in bf16 too: a value below it would wrap around to the highest level."""


@dataclass(frozen=True)
class Quantised:
    """Shape: values `[T, n]` uint8; scales `[T]` in fp32."""

    values: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, states: Tensor) -> Quantised:
        return cls(torch.empty(states.shape, dtype=torch.uint8), torch.empty(len(states)))

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        return self.values.numpy(), self.scales.numpy()


def quantised_weight(weight: Tensor, smoothing: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Quantise a weight, multiplied by its inputs' smoothing, with a scale for each output.

    Shape: weight `[out, in]`, smoothing `[in]` → `[out, in]` int8, `[out]`
    """
    values = torch.empty_like(weight, dtype=torch.int8, requires_grad=False)
    scales = torch.empty(len(weight), device=weight.device)
    for start in range(0, len(weight), _QUANTISED_ROWS):
        rows = slice(start, start + _QUANTISED_ROWS)
        block = weight.detach()[rows].float()
        block = block if smoothing is None else block * smoothing
        scales[rows] = _weight_scales(block)
        values[rows] = (block / scales[rows, None]).round_()
    return values, scales


class QuantisedLinear:
    """A linear layer with weights in int8, in the order of the matrix product.

    Args:
        weight: `[out, in]`, in fp32.
        bias: `[out]`.
        dtype: Data type of inputs and outputs.
        inputs: Range of the inputs.
        smoothing: What inputs around zero are divided by before they are quantised, `[in]`.
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
        self._factors = torch.ones(weight.shape[1]) if smoothing is None else smoothing.float().reciprocal()
        self._dtype = dtype
        self._values = torch.ops.onednn.qlinear_prepack(values, None)
        self._scales = scales
        self._zeros = torch.zeros(len(scales), dtype=torch.int64)
        # What the zero point adds to each sum is taken away inside the product.
        self._correction = -inputs.zero_point * sums if inputs.zero_point else None
        self.bias = bias.detach().float() + (inputs.lowest or 0.0) * sums

    def __call__(self, states: Tensor, plus: Tensor | None = None) -> Tensor:
        """Multiply states `[T, in]`; `plus` is added to the result."""
        outputs = torch.empty(len(states), self.width, dtype=self._dtype)
        for block in blocks(len(states)):
            self.multiply(self.quantised(states[block]), outputs[block], None if plus is None else plus[block])
        return outputs

    @property
    def width(self) -> int:
        """Number of outputs."""
        return len(self._scales)

    def quantised(self, states: Tensor) -> Quantised:
        """Quantise inputs of this layer, `[T, in]`."""
        return self.inputs.quantised(states, self._factors)

    def multiply(self, inputs: Quantised, outputs: Tensor, plus: Tensor | None = None) -> None:
        """Multiply quantised states into `outputs`, of this layer's data type."""
        added = None if plus is None else memory_of(plus.contiguous())
        rescale(self.product(inputs).numpy(), inputs.scales.numpy(), self.bias.numpy(), added, memory_of(outputs))

    def multiply_through_gelu(self, inputs: Quantised, inner: Tensor | None, outputs: Range) -> Quantised:
        """Multiply quantised states and return the product's GELU, quantised.

        Args:
            inputs: States of this layer's range.
            inner: What is added in front of the GELU; it is overwritten with what that returns.
            outputs: Range of the GELU.
        """
        product = self.product(inputs)
        found = Quantised.empty(product)
        arguments = (
            product.numpy(),
            inputs.scales.numpy(),
            self.bias.numpy(),
            None if inner is None else memory_of(inner),
        )
        gelu_and_quantise_above(*arguments, outputs.lowest, *found.arrays())
        return found

    def product(self, inputs: Quantised) -> Tensor:
        """Return the product in fp32, without its tokens' scales and without the bias."""
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            *(inputs.values, 1.0, 0),
            *(self._values, self._scales, self._zeros),
            *(self._correction, 1.0, 0, torch.float32),
            *("none", [], ""),
        )
        return product


def blocks(num_tokens: int) -> Iterator[slice]:
    """Cut tokens into blocks that stay in the cache."""
    return (slice(start, start + BLOCK_TOKENS) for start in range(0, num_tokens, BLOCK_TOKENS))

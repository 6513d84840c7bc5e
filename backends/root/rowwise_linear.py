"""Linear layers in fp8 or int8 by PyTorch's own products, as GPUs have them: a scale for each token and each output.

A token's results do not depend on the tokens beside it, and one with NaN or infinity spoils itself only, through its
scale. CPUs compute the same products, but slowly: there `int8_linear.py` is the faster one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

_SIZES_IN_STEPS_OF = 16
"""Products take inputs and outputs in these steps; others are filled up with zeros."""
_LEAST_SCALE = torch.finfo(torch.float32).tiny


class RowwiseLinear(ABC):
    """A linear layer with quantised weights.

    Args:
        weight: `[out, in]`, in fp32.
        bias: `[out]`.
        dtype: Data type of inputs and outputs.
        device: Where the layer runs.
        smoothing: What inputs are divided by before they are quantised, `[in]`.
    """

    _largest: float
    """The largest of the quantised values."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        dtype: torch.dtype,
        device: torch.device,
        smoothing: Tensor | None = None,
    ) -> None:
        weight = weight.detach().float().to(device)
        self._divided = None if smoothing is None else smoothing.to(device).reciprocal()
        if smoothing is not None:
            weight = weight * smoothing.to(device)
        self._num_outputs, self._num_inputs = weight.shape
        unfilled_in, unfilled_out = (-size % _SIZES_IN_STEPS_OF for size in (self._num_inputs, self._num_outputs))
        values, scales = self._quantised(functional.pad(weight, (0, unfilled_in, 0, unfilled_out)))
        self._weight, self._weight_scales = values.t(), scales.t()
        self._bias = bias.detach().to(device=device, dtype=dtype)
        self._dtype, self._unfilled_in = dtype, unfilled_in

    def __call__(self, states: Tensor, plus: Tensor | None = None) -> Tensor:
        """Multiply states `[T, in]`; `plus` is added to the result."""
        states = states.float() if self._divided is None else states * self._divided
        values, scales = self._quantised(functional.pad(states, (0, self._unfilled_in)))
        outputs = self._product(values, scales)[:, : self._num_outputs].add_(self._bias)
        return outputs if plus is None else outputs.add_(plus)

    def _quantised(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Shape: states `[T, n]` → values `[T, n]`, scales `[T, 1]` in fp32."""
        scales = (states.abs().amax(dim=-1, keepdim=True) / self._largest).clamp_min_(_LEAST_SCALE)
        return self._rounded(states / scales), scales

    @abstractmethod
    def _rounded(self, states: Tensor) -> Tensor: ...

    @abstractmethod
    def _product(self, values: Tensor, scales: Tensor) -> Tensor:
        """Multiply quantised states by the weight, scales included.

        Shape: values `[T, in]`, scales `[T, 1]` → `[T, out]`, in this layer's data type
        """


class Fp8Linear(RowwiseLinear):
    """In 8-bit floats of four bits for the exponent."""

    _largest = torch.finfo(torch.float8_e4m3fn).max

    def _rounded(self, states: Tensor) -> Tensor:
        return states.to(torch.float8_e4m3fn)

    def _product(self, values: Tensor, scales: Tensor) -> Tensor:
        return torch._scaled_mm(
            values, self._weight, scale_a=scales, scale_b=self._weight_scales, out_dtype=self._dtype
        )


class Int8Linear(RowwiseLinear):
    _largest = 127.0

    def _rounded(self, states: Tensor) -> Tensor:
        return states.round().to(torch.int8)

    def _product(self, values: Tensor, scales: Tensor) -> Tensor:
        sums = torch._int_mm(values, self._weight)
        return (sums * scales).mul_(self._weight_scales).to(self._dtype)


ROWWISE: dict[Literal["fp8", "int8"], type[RowwiseLinear]] = {"fp8": Fp8Linear, "int8": Int8Linear}

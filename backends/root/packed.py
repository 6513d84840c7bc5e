"""Linear layers in bf16 with their weights in the order of a CPU's matrix product; else every product reorders them.

A product is compiled for each number of rows that it meets, so callers round that number to a few that
recur.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

FUSED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"gelu": ("gelu", "none"), "gelu_new": ("gelu", "tanh"), "relu": ("relu", ""), "silu": ("swish", "")}
)
"""Attribute and algorithm of each activation that a product can apply to its outputs."""
# The order of the weights hardly depends on the number of rows; this one is good for all.
_PACKED_FOR_ROWS = 128


def cpu_multiplies_bf16() -> bool:
    """Whether this machine's processor has instructions for products in bf16.

    The library also takes those of AVX-512 alone, but it converts each number there, and fp32 is faster.
    """
    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(has_instructions and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear:
    """A linear layer with its weights in the order of the matrix product."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _PACKED_FOR_ROWS)
        self._bias = None if bias is None else bias.detach()

    @classmethod
    def of(cls, linear: nn.Linear) -> PackedLinear:
        return cls(linear.weight, linear.bias)

    def __call__(self, inputs: Tensor, plus: Tensor | None = None) -> Tensor:
        if plus is None:
            return self.activated(inputs, ("none", ""))
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise.binary(inputs, plus, self._weight, self._bias, "add")
        return outputs

    def activated(self, inputs: Tensor, fused: tuple[str, str]) -> Tensor:
        attribute, algorithm = fused
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._weight, self._bias, attribute, [], algorithm)
        return outputs

"""The tensors of one hPLM: its adapters, one per upper layer, and its head."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from backends.errors import InvalidArgumentError

MAX_BOTTLENECK = 64
"""Widest adapter that fits a device slot."""

PartT = TypeVar("PartT", bound="_Tensors")


@dataclass(frozen=True)
class _Tensors:
    def named(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to(self: PartT, dtype: torch.dtype) -> PartT:
        return type(self)(**{name: tensor.to(dtype) for name, tensor in self.named().items()})

    def require_finite(self, what: str) -> None:
        for name, tensor in self.named().items():
            if not bool(torch.isfinite(tensor).all()):
                raise InvalidArgumentError(f"{what}: {name} holds NaN or infinite values")


@dataclass(frozen=True)
class BottleneckAdapter(_Tensors):
    """Adapters of all upper layers, stacked.

    Semantics:
        layer l, after its attention output x and before the residual LayerNorm: x + up[l]·relu(down[l]·x)
    Shape:
        down_weight `[U, d, H]`, down_bias `[U, d]`, up_weight `[U, H, d]`, up_bias `[U, H]`.
    """

    down_weight: Tensor
    down_bias: Tensor
    up_weight: Tensor
    up_bias: Tensor

    def __post_init__(self) -> None:
        layers, width, hidden = self.down_weight.shape
        expected = {"down_bias": (layers, width), "up_weight": (layers, hidden, width), "up_bias": (layers, hidden)}
        for name, shape in expected.items():
            if tuple(getattr(self, name).shape) != shape:
                raise InvalidArgumentError(f"adapter {name} has shape {tuple(getattr(self, name).shape)}, not {shape}")

    @property
    def num_layers(self) -> int:
        return self.down_weight.shape[0]

    @property
    def width(self) -> int:
        return self.down_weight.shape[1]

    @property
    def hidden_size(self) -> int:
        return self.down_weight.shape[2]

    def apply(self, layer: int, states: Tensor) -> Tensor:
        """One layer's adapter over states of any shape `[..., H]`, all of the same hPLM."""
        inner = torch.relu(states @ self.down_weight[layer].T + self.down_bias[layer])
        return states + inner @ self.up_weight[layer].T + self.up_bias[layer]


@dataclass(frozen=True)
class Head(_Tensors):
    """A linear classifier over a row's pooled state.

    Shape:
        weight `[C, H]`, bias `[C]`.
    """

    weight: Tensor
    bias: Tensor

"""The parts that an hPLM's adapters are made of, each stacked over all upper layers.

A layer that a part leaves out has zeros there (a norm has the root's own values), which changes nothing; so do the
zeros that fill a narrow part up to the width of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from backends.adapters.tensors import Tensors
from backends.errors import InvalidArgumentError
from backends.root.encoder import ACTIVATION_FUNCTIONS

MAX_WIDTH = 256
"""Widest bottleneck and highest rank that can be served."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Bottleneck(Tensors):
    """A small two-layer network beside a residual sum.

    Semantics:
        A(z) = up·f(down·z + down_bias) + up_bias; at its site, of states x and residual a:
        LN(x + A(x) + a), or with `norm_first` LN(x + A(LN(x + a)) + a)
    Shape:
        down_weight `[U, d, H]`, down_bias `[U, d]`, up_weight `[U, H, d]`, up_bias `[U, H]`.
    """

    down_weight: Tensor
    down_bias: Tensor
    up_weight: Tensor
    up_bias: Tensor
    activation: str = "relu"
    norm_first: bool = False

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATION_FUNCTIONS:
            known = ", ".join(ACTIVATION_FUNCTIONS)
            raise InvalidArgumentError(f"adapter activation {self.activation!r} is not one of {known}")
        layers, width, inputs = sizes_of(self.down_weight, 3)
        require_shapes(self, self.shapes(layers, inputs, sizes_of(self.up_weight, 3)[1], width))

    @staticmethod
    def shapes(layers: int, inputs: int, outputs: int, width: int) -> Shapes:
        return {
            "down_weight": (layers, width, inputs),
            "down_bias": (layers, width),
            "up_weight": (layers, outputs, width),
            "up_bias": (layers, outputs),
        }

    @property
    def width(self) -> int:
        return self.down_weight.shape[1]

    def change(self, layer: int, states: Tensor) -> Tensor:
        """A(states), for states `[..., H]`."""
        inner = functional.linear(states, self.down_weight[layer], self.down_bias[layer])
        inner = ACTIVATION_FUNCTIONS[self.activation](inner)
        return functional.linear(inner, self.up_weight[layer], self.up_bias[layer])


@dataclass(frozen=True)
class Lora(Tensors):
    """A low-rank change of a linear layer; its scaling is folded into `up`.

    Semantics:
        y = W·x + b + up·down·x
    Shape:
        down `[U, r, in]`, up `[U, out, r]`.
    """

    down: Tensor
    up: Tensor

    def __post_init__(self) -> None:
        layers, rank, inputs = sizes_of(self.down, 3)
        require_shapes(self, self.shapes(layers, inputs, sizes_of(self.up, 3)[1], rank))

    @staticmethod
    def shapes(layers: int, inputs: int, outputs: int, width: int) -> Shapes:
        return {"down": (layers, width, inputs), "up": (layers, outputs, width)}

    @property
    def width(self) -> int:
        return self.down.shape[1]

    def change(self, layer: int, states: Tensor) -> Tensor:
        """Compute the summand of the linear layer's outputs, for states `[..., in]`."""
        return functional.linear(functional.linear(states, self.down[layer]), self.up[layer])


@dataclass(frozen=True)
class Norm(Tensors):
    """An hPLM's own weights of a LayerNorm; they replace the shared ones.

    Shape:
        weight `[U, H]`, bias `[U, H]`.
    """

    weight: Tensor
    bias: Tensor

    def __post_init__(self) -> None:
        layers, outputs = sizes_of(self.weight, 2)
        require_shapes(self, self.shapes(layers, outputs, outputs, self.width))

    @staticmethod
    def shapes(layers: int, inputs: int, outputs: int, width: int) -> Shapes:
        return {"weight": (layers, outputs), "bias": (layers, outputs)}

    @property
    def width(self) -> int:
        return 0

    def normalise(self, layer: int, states: Tensor, eps: float) -> Tensor:
        return functional.layer_norm(states, states.shape[-1:], self.weight[layer], self.bias[layer], eps)


Part = Bottleneck | Lora | Norm


def sizes_of(tensor: Tensor, count: int) -> tuple[int, ...]:
    """Return the sizes of a tensor that has to have so many."""
    if tensor.ndim != count:
        raise InvalidArgumentError(f"an adapter's tensor has shape {tuple(tensor.shape)}, not one of {count} sizes")
    return tuple(tensor.shape)


def require_shapes(part: Tensors, expected: Shapes) -> None:
    for name, tensor in part.named().items():
        if tuple(tensor.shape) != tuple(expected[name]):
            raise InvalidArgumentError(f"adapter {name} has shape {tuple(tensor.shape)}, not {tuple(expected[name])}")

"""An hPLM's head: from a state of the upper layers to one number per label."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from backends.adapters.tensors import Tensors
from backends.errors import InvalidArgumentError
from backends.root.encoder import ACTIVATION_FUNCTIONS


@dataclass(frozen=True)
class Head(Tensors):
    """A linear classifier, with a dense layer in front of it where there is one.

    Semantics:
        logits = weight·f(dense_weight·x + dense_bias) + bias; without a dense layer weight·x + bias
    Shape:
        weight `[C, D]`, bias `[C]`, dense_weight `[D, H]`, dense_bias `[D]`; D = H without a dense layer.
    """

    weight: Tensor
    bias: Tensor
    dense_weight: Tensor | None = None
    dense_bias: Tensor | None = None
    activation: str = "tanh"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATION_FUNCTIONS:
            known = ", ".join(ACTIVATION_FUNCTIONS)
            raise InvalidArgumentError(f"head activation {self.activation!r} is not one of {known}")
        if self.weight.ndim != 2 or tuple(self.bias.shape) != (len(self.weight),):
            raise InvalidArgumentError("a head's weight and bias do not fit together")
        if (self.dense_weight is None) != (self.dense_bias is None):
            raise InvalidArgumentError("a head's dense layer needs both its weight and its bias")
        if self.dense_weight is not None and (
            self.dense_weight.ndim != 2 or self.dense_weight.shape[0] != self.weight.shape[1]
        ):
            raise InvalidArgumentError("a head's dense layer does not fit its classifier")

    @property
    def hidden_size(self) -> int:
        return (self.weight if self.dense_weight is None else self.dense_weight).shape[1]

    def features(self, states: Tensor) -> Tensor:
        """Compute the classifier's input: `[..., H]` → `[..., D]`."""
        if self.dense_weight is None:
            return states
        return ACTIVATION_FUNCTIONS[self.activation](functional.linear(states, self.dense_weight, self.dense_bias))

    def logits(self, states: Tensor) -> Tensor:
        """`[..., H]` → `[..., C]`."""
        return functional.linear(self.features(states), self.weight, self.bias)

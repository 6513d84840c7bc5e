"""A linear map between the states of two layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backends.root.upper import UpperLayers
from builder.construct.students.hidden_texts import HiddenTexts

_RIDGE = 1e-6


@dataclass(frozen=True)
class StateMap:
    """Shape: weight `[H, H]`, bias `[H]`."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, linear: nn.Module) -> StateMap:
        return cls(*(linear.get_parameter(name).detach() for name in ("weight", "bias")))

    @classmethod
    @torch.no_grad()
    def nearest(cls, upper: UpperLayers, after: int, texts: HiddenTexts, num_heads: int) -> StateMap:
        """Fit by least squares: from the states after some layers to those after all of them."""
        squares: Tensor | float = 0.0
        products: Tensor | float = 0.0
        for _, batch in texts.all():
            states = list(upper.states(batch.hidden, batch.attend(num_heads)))
            early, final = (each[batch.mask].double() for each in (states[after - 1], states[-1]))
            early = torch.cat([early, torch.ones(len(early), 1, dtype=torch.float64)], dim=1)
            squares, products = squares + early.T @ early, products + early.T @ final
        ridge = _RIDGE * torch.as_tensor(squares).diagonal().mean() * torch.eye(len(torch.as_tensor(squares)))
        fitted = torch.linalg.solve(squares + ridge, torch.as_tensor(products)).float()
        return cls(fitted[:-1].T, fitted[-1])

    def part(self, count: int) -> StateMap:
        """Return one of as many equal parts, whose sum is this map."""
        return StateMap(self.weight / count, self.bias / count)

    @torch.no_grad()
    def put_into(self, linear: nn.Module) -> None:
        linear.get_parameter("weight").copy_(self.weight)
        linear.get_parameter("bias").copy_(self.bias)

"""The linear map of some states that comes nearest to others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_RIDGE = 1e-6


class LeastSquares:
    """Adds up pairs of states, as many at a time as there are, and solves for the map from the first to the second.

    Args:
        width: Of the states that are mapped.
        hidden_size: Of those that they are mapped to.
        device: Where both are.
    """

    def __init__(self, width: int, hidden_size: int, device: torch.device) -> None:
        self._squares = torch.zeros(width + 1, width + 1, dtype=torch.float64, device=device)
        self._products = torch.zeros(width + 1, hidden_size, dtype=torch.float64, device=device)

    def add(self, states: Tensor, others: Tensor) -> None:
        """Shape: `[T, h]`, `[T, H]`."""
        mapped = torch.cat([states, torch.ones_like(states[:, :1])], dim=1).double()
        self._squares += mapped.T @ mapped
        self._products += mapped.T @ others.double()

    def solve_into(self, linear: nn.Module) -> None:
        """Give a layer the weights and the bias of the map."""
        ridge = _RIDGE * self._squares.diagonal().mean() * torch.eye(len(self._squares)).to(self._squares)
        solved = torch.linalg.solve(self._squares + ridge, self._products).float()
        with torch.no_grad():
            linear.get_parameter("weight").copy_(solved[:-1].T)
            linear.get_parameter("bias").copy_(solved[-1])

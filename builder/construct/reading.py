"""What the head of a teacher reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from backends.adapters.head import Head

_LEAST_SPREAD = 1e-4
_SPREAD_OF_ROWS = 20_000


@dataclass(frozen=True)
class Reading:
    """A teacher's head, and the states that it reads of some texts.

    A pupil that hands the same states to the same head answers the same; and a state says more than an answer does.

    Shape:
        states: `[m, P]` for each text, m as in `Objective`
    """

    head: Head
    states: Sequence[Tensor]

    @property
    def width(self) -> int:
        return self.head.weight.shape[1]

    def distance(self, states: Tensor, places: Iterable[int]) -> Tensor:
        """The mean square, each dimension measured by how far its states lie from each other.

        Shape: states `[M, P]`, of the texts at these places together
        """
        wanted = torch.cat([self.states[place] for place in places]).to(states.device, torch.float32)
        return ((states - wanted) / self._spread.to(states.device)).square().mean()

    @cached_property
    def _spread(self) -> Tensor:
        some = torch.cat(list(self.states[:_SPREAD_OF_ROWS])).float()
        return some.std(dim=0, correction=0).clamp(min=_LEAST_SPREAD)

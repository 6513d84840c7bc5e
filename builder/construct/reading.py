"""What the head of a teacher reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.adapters.head import Head

_SPREAD_OF_ROWS = 20_000
_LEAST_SPREAD = 0.01


@dataclass(frozen=True)
class Reading:
    """A teacher's head, and the states that it reads, one of each text.

    A pupil that hands the same states to the same head answers the same; and a state says more than an answer does.

    Shape:
        states: `[N, P]`; `pooling` says what of a row they are.
    """

    head: Head
    states: Tensor
    pooling: str

    def distance(self, states: Tensor, places: npt.NDArray[np.int64]) -> Tensor:
        """The mean square, each dimension measured by how far its states lie from each other.

        Shape: states `[B, P]`, of the texts at these places
        """
        wanted = self.states[torch.from_numpy(places)].to(states.device, torch.float32)
        return ((states - wanted) / self._spread.to(states.device)).square().mean()

    @cached_property
    def _spread(self) -> Tensor:
        """Of one that hardly varies a hundredth of the usual: there, what differs is rounding."""
        every = max(1, len(self.states) // _SPREAD_OF_ROWS)
        spread = self.states[::every].float().std(dim=0, correction=0)
        return spread.clamp(min=max(float(spread.median()) * _LEAST_SPREAD, torch.finfo(torch.float16).tiny))

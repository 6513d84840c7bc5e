"""What the head of a teacher reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.adapters.head import Head
from builder.construct.hplm.state_rows import StateRows

_ANSWERED_AT_ONCE = 65_536
_SPREAD_OF_STATES = 20_000
_LEAST_SPREAD = 0.01


@dataclass(frozen=True)
class Reading:
    """A teacher's head, and the states that it reads of each text: one, or one of each word.

    A pupil that hands the same states to the same head answers the same; and a state says more than an answer does.

    Shape:
        states: `[m, P]` of each text; `pooling` says what of a row they are.
    """

    head: Head
    states: StateRows
    pooling: str

    def answers(self, offset: float, factor: float) -> list[Tensor]:
        """What the head makes of these states, `[m, C]` of each text, brought to the task's scale."""
        hidden = self.states.hidden
        starts = range(0, len(hidden), _ANSWERED_AT_ONCE)
        raw = [self.head.logits(_tensor(hidden[start : start + _ANSWERED_AT_ONCE])) for start in starts]
        return list(torch.split(torch.cat(raw) * factor + offset, self.states.lengths.tolist()))

    def distance(self, states: Tensor, places: npt.NDArray[np.int64]) -> Tensor:
        """The mean square, each dimension measured by how far its states lie from each other.

        Shape: states `[M, P]`, all of the texts at these places, one after the other
        """
        wanted = torch.cat([self.states[place] for place in places]).to(states.device, torch.float32)
        return ((states - wanted) / self._spread.to(states.device)).square().mean()

    @cached_property
    def _spread(self) -> Tensor:
        """Of one that hardly varies a hundredth of the states' size: there, what differs is rounding."""
        hidden = self.states.hidden
        states = _tensor(hidden[:: max(1, len(hidden) // _SPREAD_OF_STATES)])
        size = float(states.square().mean().sqrt())
        return states.std(dim=0, correction=0).clamp(min=max(_LEAST_SPREAD * size, torch.finfo(torch.float16).tiny))


def _tensor(states: npt.NDArray[np.float16]) -> Tensor:
    return torch.from_numpy(states.astype(np.float32))

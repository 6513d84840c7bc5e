"""The memory of groups while models are put there: the budget that no search exceeds."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from builder.placement.planner.problem import Problem
from builder.placement.planner.selection import Frame


class Room:
    """The memory that is left on each group, stage by stage, while models are put there."""

    def __init__(self, problem: Problem, frames: Sequence[Frame]) -> None:
        self._forms = problem.forms
        self._shapes = np.array([self._forms.shape(frame.num_stages) for frame in frames], np.int64)
        self._left = np.zeros((len(frames), self._forms.stage_bytes.shape[2]), np.int64)
        for number, frame in enumerate(frames):
            self._left[number, : frame.num_stages] = [problem.devices[place].memory_bytes for place in frame.devices]

    def copy(self) -> Room:
        other = copy.copy(self)
        other._left = self._left.copy()
        return other

    def fits(self, model: int) -> NDArray[np.bool_]:
        """Return for each group whether it has room for a model, whether or not it holds it. Shape: [groups]."""
        needed = self._forms.stage_bytes[self._shapes, model]
        is_possible = self._forms.is_possible[self._shapes, model]
        fitting: NDArray[np.bool_] = (needed <= self._left).all(axis=1) & is_possible
        return fitting

    def take(self, model: int, group: int) -> None:
        self._left[group] -= self._forms.stage_bytes[self._shapes[group], model]

"""Teacher data of an hPLM that is tuned: texts, the teacher's answers to them, and the states behind the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from backends.adapters.head import Head
from builder.construct.hplm.state_rows import StateRows
from builder.construct.tasks.dataset import TaskData
from builder.construct.tasks.examples import Example
from builder.progress import Report
from builder.settings.hplm import TuneSettings

_ANSWERED_AT_ONCE = 65_536
_SPREAD_OF_STATES = 20_000
_LEAST_SPREAD = 0.01


@dataclass(frozen=True)
class TeacherStates:
    """A teacher's head, and the states that it reads of each text: one, or one for each word.

    A pupil that hands the same states to the same head answers the same, and a state says more than an answer does.

    Shape:
        rows: `[m, P]` of each text; `pooling` says what of a row they are.
    """

    head: Head
    rows: StateRows
    pooling: str

    def answers(self, offset: float, factor: float) -> list[Tensor]:
        """Compute the head's answers to these states, `[m, C]` of each text, brought to the task's scale."""
        hidden = self.rows.hidden
        starts = range(0, len(hidden), _ANSWERED_AT_ONCE)
        raw = [self.head.logits(_tensor(hidden[start : start + _ANSWERED_AT_ONCE])) for start in starts]
        return list(torch.split(torch.cat(raw) * factor + offset, self.rows.lengths.tolist()))

    def distance(self, states: Tensor, indices: npt.NDArray[np.int64]) -> Tensor:
        """The mean square, each dimension measured by how far its states lie from each other.

        Shape: states `[M, P]`, those of the texts at these indices, one after the other
        """
        wanted = torch.cat([self.rows[index] for index in indices]).to(states.device, torch.float32)
        return ((states - wanted) / self._spread.to(states.device)).square().mean()

    @cached_property
    def _spread(self) -> Tensor:
        """Return each feature's spread, at least a hundredth of the states' size: less than that is rounding."""
        hidden = self.rows.hidden
        states = _tensor(hidden[:: max(1, len(hidden) // _SPREAD_OF_STATES)])
        size = float(states.square().mean().sqrt())
        return states.std(dim=0, correction=0).clamp(min=max(_LEAST_SPREAD * size, torch.finfo(torch.float16).tiny))


@dataclass(frozen=True)
class TeacherData:
    """Texts and a teacher's answers to them, `[m, C]` each (see `Objective`).

    A text that was made of an example carries its labels; those of a text without labels mean nothing.
    """

    examples: Sequence[Example]
    answers: Sequence[Tensor]
    states: TeacherStates | None = None
    """The states behind the answers, where the teacher can name them."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures about the teacher, by names that say so."""

    @cached_property
    def digest(self) -> str:
        digest = xxhash.xxh3_128(repr(list(self.examples)).encode("utf-8", "surrogatepass"))
        for answer in self.answers:
            digest.update(answer.to(torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()


class Teacher(Protocol):
    """Reads a task's examples and gives what is to be learnt."""

    @property
    def unlabelled(self) -> Path | None:
        """A file of texts without labels, which it answers too."""
        ...

    def __call__(self, data: TaskData, pupil: TuneSettings, report: Report) -> TeacherData:
        """`pupil`: how it is tuned; its teacher weighs classes and pools states in the same way."""
        ...


def _tensor(states: npt.NDArray[np.float16]) -> Tensor:
    return torch.from_numpy(states.astype(np.float32))

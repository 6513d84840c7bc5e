"""At which step of its hPLM's ladder an answer was given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class AnswerLevel:
    """The step, and how sure the answer is.

    Attributes:
        name: The step's.
        temperature: Makes the answer's confidence true.
        is_doubtful: Whether the row would have gone on, but for its deadline or because only this step was asked for.
    """

    name: str
    temperature: float
    is_doubtful: bool = False

    def doubtful(self) -> AnswerLevel:
        return replace(self, is_doubtful=True)


class Scored(NamedTuple):
    """Logits of a row, in fp32 on the CPU, and their level; an hPLM without a ladder has none to tell."""

    logits: Tensor
    level: AnswerLevel | None = None

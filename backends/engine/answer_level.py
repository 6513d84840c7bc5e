"""At which step of its hPLM's ladder an answer was given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import Tensor

from backends.stack_key import FULL, STUDENTS


@dataclass(frozen=True)
class AnswerLevel:
    """The step, and how sure the answer is.

    Attributes:
        name: The step's.
        temperature: Makes the answer's confidence true.
        is_doubtful: Whether the row would have gone on, but for its deadline or because only this step was asked for.
        is_reduced: Whether the load allowed less than is best for the hPLM.
    """

    name: str
    temperature: float
    is_doubtful: bool = False
    is_reduced: bool = False

    def reason(self, asked: str) -> AnswerReason:
        """Say why the answer came from this step; `asked` is the level of the request."""
        if self.name == FULL:
            return "top"
        if self.name == asked:
            return "asked"
        if asked == STUDENTS:
            return "load" if self.is_reduced else "asked"
        return "deadline" if self.is_doubtful else "confident"

    def doubtful(self) -> AnswerLevel:
        return replace(self, is_doubtful=True)


AnswerReason = Literal["confident", "asked", "deadline", "load", "top"]
"""Why an answer came from its step: it was sure enough, only that one was asked for, the deadline came, the load
allowed no more, or it is the last one."""


class Scored(NamedTuple):
    """Logits of a row, in fp32 on the CPU, and their level; an hPLM without a ladder has none to tell."""

    logits: Tensor
    level: AnswerLevel | None = None

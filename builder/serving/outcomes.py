"""What an error tells the canary: whether requests get outcomes, and if not, whether a restart may help."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from backends.errors import ErrorCode, is_of_one_hplm
from backends.scheduling.rejection import reason_of

_OF_TRITON = re.compile(
    r"stub process|is not healthy|unknown model|no available versions|not at ready state|server not ready"
    r"|server is stopping",
    re.IGNORECASE,
)
"""Errors that no model of ours has made, or that one makes as it ends."""
_OF_A_MODEL = re.compile(r"in ensemble '")
"""How Triton begins what a model of an ensemble has answered; without it, no model was asked."""
_CODES = {code.value: code for code in ErrorCode} | {"INVALID_ARGUMENT": ErrorCode.INVALID_ARG}
_CODES |= {"400": ErrorCode.INVALID_ARG, "404": ErrorCode.NOT_FOUND, "503": ErrorCode.UNAVAILABLE}
_OF_THE_MOMENT = (ErrorCode.UNAVAILABLE, ErrorCode.CANCELLED)


class Outcome(Enum):
    """What an error means."""

    REJECTED = auto()
    """As good as an answer: the server has more to do than it can."""
    OF_THE_HPLM = auto()
    """As good as an answer; but another hPLM may tell more."""
    UNREADY = auto()
    """Requests get no answers, and a restart would not help, or would lose what is served without it."""
    FAILED = auto()
    """Requests get no answers; if that lasts, a restart may help."""


@dataclass(frozen=True)
class Fault:
    """An error as a canary got it.

    Attributes:
        status: The name of a gRPC status, or the number of an HTTP status.
    """

    status: str
    message: str

    def __str__(self) -> str:
        return self.message

    @property
    def outcome(self) -> Outcome:
        """Judge by the code, the reason and who has answered; Triton says some things only in words."""
        code, is_of_a_model = _CODES.get(self.status), _OF_A_MODEL.match(self.message) is not None
        if code is ErrorCode.UNAVAILABLE and reason_of(self.message) is not None:
            return Outcome.REJECTED
        if _OF_TRITON.search(self.message):
            return Outcome.FAILED
        if is_of_a_model and (code is ErrorCode.NOT_FOUND or is_of_one_hplm(self.message)):
            return Outcome.OF_THE_HPLM
        if code is ErrorCode.INVALID_ARG or (is_of_a_model and code in _OF_THE_MOMENT):
            return Outcome.UNREADY
        return Outcome.FAILED

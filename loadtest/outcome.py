"""What became of one request, small enough to travel in thousands."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from hplm_client import Answer, ClientError, NotReadyError

_REASON_CHARACTERS = 120
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|\S+/\S+|\d[\d.,:]*")


class Kind(StrEnum):
    """`REFUSED`: there was no time or room, as a running server says, or the SDK of an answer that came too late."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"


class Outcome(NamedTuple):
    """Times count from the start of the load; `number` is the row of the whole schedule."""

    number: int
    sent_s: float
    done_s: float
    kind: str
    reason: str
    version: int | None

    @classmethod
    def of(cls, number: int, sent_s: float, done_s: float, outcome: Answer | ClientError) -> Outcome:
        if isinstance(outcome, Answer):
            return cls(number, sent_s, done_s, Kind.ANSWERED, "", outcome.version)
        code = "NOT_READY" if isinstance(outcome, NotReadyError) else outcome.code
        kind = Kind.REFUSED if code == "UNAVAILABLE" else Kind.FAILED
        return cls(number, sent_s, done_s, kind, f"{code}: {general(outcome.message)}", None)


def general(message: str) -> str:
    """A message without what differs from request to request: numbers, names, paths. So that reasons can be counted."""
    return _VARYING.sub("…", " ".join(message.split()))[:_REASON_CHARACTERS]

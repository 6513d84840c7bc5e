"""The outcome of one request, small enough to travel in thousands."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from hplm_client import Answer, ClientError, NotReadyError

_REASON_CHARACTERS = 120
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|\S+/\S+|\d[\d.,:]*")
_UNSENT_REASON = "UNSENT: the deadline passed before the request was sent"
_OVERTAKEN = "before the answer was here"
"""A part of the SDK's message about an answer that left the server in time and arrived after its deadline."""


class Kind(StrEnum):
    """The four ways in which a request ends.

    - `REJECTED`: UNAVAILABLE, from a running server, or from the SDK for an answer that arrived after its deadline.
    - `UNSENT`: nothing of the planned deadline was left when the request was to be sent.
    """

    ANSWERED = "answered"
    REJECTED = "rejected"
    FAILED = "failed"
    UNSENT = "unsent"


class Outcome(NamedTuple):
    """The end of one request. Times count from the start of the load; `number` is its row in the whole schedule.

    Of an answer: `level` is that of its hPLM's ladder, empty without one; `right` is None where no label is known.
    """

    number: int
    sent_s: float
    done_s: float
    kind: str
    reason: str
    version: int | None
    level: str = ""
    doubtful: bool = False
    right: bool | None = None

    @classmethod
    def of(
        cls, number: int, sent_s: float, done_s: float, result: Answer | ClientError | None, label: str | None = None
    ) -> Outcome:
        """The outcome of a request that was sent; None is an answer of a model that has no versions.

        `label` is the right one of the text, if it is known.
        """
        if result is None:
            return cls(number, sent_s, done_s, Kind.ANSWERED, "", None)
        if not isinstance(result, ClientError):
            right = None if label is None else getattr(result, "label", None) == label
            level, doubtful = result.level or "", result.doubtful
            return cls(number, sent_s, done_s, Kind.ANSWERED, "", result.version, level, doubtful, right)
        code = "NOT_READY" if isinstance(result, NotReadyError) else result.code
        kind = Kind.REJECTED if code == "UNAVAILABLE" else Kind.FAILED
        return cls(number, sent_s, done_s, kind, f"{code}: {general(result.message)}", None)

    @classmethod
    def unsent(cls, number: int, now_s: float) -> Outcome:
        return cls(number, now_s, now_s, Kind.UNSENT, _UNSENT_REASON, None)


def is_overtaken(reason: str) -> bool:
    """Whether the SDK dropped an answer because its deadline passed on the way to the client."""
    return _OVERTAKEN in reason


def general(message: str) -> str:
    """Remove from a message what differs between requests (numbers, names, paths), so that reasons can be counted."""
    return _VARYING.sub("…", " ".join(message.split()))[:_REASON_CHARACTERS]

"""What became of requests with deadlines, and how many of them count as admitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadtest.in_process import Played
from loadtest.outcome import Kind, is_overtaken


class Fate(StrEnum):
    """The end of a request.

    - `ON_TIME`, `LATE`: answered before or after the planned deadline.
    - `OVERTAKEN`: the SDK rejected the answer, which came after the deadline that the request carried. Also if the SDK
      accepted it and the planned deadline passed within milliseconds, before this process noted the end.
    - `EXPIRED`: the server rejected it after its deadline, or when that could not be met any more.
    - `REJECTED`: the server rejected it before.
    - `UNSENT`: nothing was left of its deadline when it was to be sent.
    - `FAILED`: any other error.
    """

    ON_TIME = "on time"
    LATE = "late"
    OVERTAKEN = "late on the way"
    EXPIRED = "expired"
    REJECTED = "rejected"
    UNSENT = "not sent"
    FAILED = "failed"


_EXPIRED = "UNAVAILABLE: the deadline pass"
"""Begins what the server says of a request that it has not rejected before its deadline."""

_INTERRUPTED_MS = 5.0
"""How long the operating system may hold a busy client between the SDK's look at the clock and this one's."""


@dataclass(frozen=True, eq=False)
class Fates:
    """The fates of all requests of a load, in its order."""

    played: Played

    @cached_property
    def each(self) -> NDArray[np.str_]:
        """Shape: [requests]."""
        requests = self.played.requests
        reasons = requests.reasons.tolist()
        overtaken = np.array([is_overtaken(reason) for reason in reasons], np.bool_)
        late_ms = 1e3 * requests.latency_s - requests.deadline_ms
        expired = np.array([reason.startswith(_EXPIRED) for reason in reasons], np.bool_)
        conditions = {
            Fate.ON_TIME: requests.in_time,
            Fate.OVERTAKEN: overtaken | (requests.answered & (late_ms <= _INTERRUPTED_MS)),
            Fate.LATE: requests.answered,
            Fate.UNSENT: np.equal(requests.kinds, str(Kind.UNSENT)),
            Fate.FAILED: np.equal(requests.kinds, str(Kind.FAILED)),
            Fate.EXPIRED: expired,
        }
        return np.select(list(conditions.values()), [str(fate) for fate in conditions], str(Fate.REJECTED))

    def are(self, *fates: Fate) -> NDArray[np.bool_]:
        return np.isin(self.each, [str(fate) for fate in fates])

    def count(self, *fates: Fate) -> int:
        return int(self.are(*fates).sum())

    def share(self, *fates: Fate) -> float:
        """Return the share of all that were planned."""
        return float(self.are(*fates).mean())

    @property
    def admitted(self) -> int:
        """Requests that were sent and not rejected before their deadline."""
        return len(self.each) - self.count(Fate.REJECTED, Fate.UNSENT)

    @property
    def admitted_on_time(self) -> float:
        return self.count(Fate.ON_TIME) / self.admitted if self.admitted else 1.0

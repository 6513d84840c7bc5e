"""The engine's work of rows that this process has accepted and that no wait forecast counts yet.

A forecast is told ten times a second. In a burst a process accepts hundreds of rows between two forecasts; without
counting them it would accept all of the burst.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

_TRANSIT_US = 15_000
"""The time from here to the engine's queue, at most, as a rule."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the rows of one request cost the engine."""

    tenant: str
    us: float
    num_tokens: int


class AcceptedLoad:
    """Work of one process by tenant: of rows that wait to be encoded, and of rows forwarded since the last forecast.

    Not safe between threads; the queue calls it under its own lock.
    """

    def __init__(self) -> None:
        self._us: dict[str, float] = defaultdict(float)
        self._forwarded: deque[tuple[int, Work]] = deque()
        self.forwarded_tokens = 0

    def accept(self, work: Work) -> None:
        self._us[work.tenant] += work.us

    def drop(self, work: Work) -> None:
        """A row that waited is rejected, or the engine has counted it."""
        left_us = self._us[work.tenant] - work.us
        if left_us > 1e-3:
            self._us[work.tenant] = left_us
        else:
            self._us.pop(work.tenant, None)

    def forward(self, work: Work, now_us: int, was_accepted: bool = True) -> None:
        """Count rows as on their way to the engine; rows without deadline were not counted while they waited."""
        if not was_accepted:
            self.accept(work)
        self._forwarded.append((now_us, work))
        self.forwarded_tokens += work.num_tokens

    def forget_told(self, told_us: int) -> None:
        """Rows that were in the engine's queue when it told the forecast are part of that."""
        while self._forwarded and self._forwarded[0][0] < told_us - _TRANSIT_US:
            _, work = self._forwarded.popleft()
            self.drop(work)
            self.forwarded_tokens -= work.num_tokens

    def ahead_us(self, tenant: str, work_us: float) -> float:
        """Predict how long a row waits for this load, where tenants run by turns: of each no more than of its own."""
        limit_us = self._us.get(tenant, 0.0) + work_us
        return sum([us if us < limit_us else limit_us for us in self._us.values()])

"""Requests that came to an end, as columns: read from a run's folder, or made of the outcomes of a load played here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.outcome import Kind, Outcome
from loadtest.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Requests:
    """All times in seconds from the start of the load; NaN for no deadline.

    `levels` are empty where no ladder answered; `right` is 1 or 0, and NaN where there is no answer or no known label.
    A request is on time if it is answered before its planned deadline: `scheduled_s` plus `deadline_ms`.

    Shape: [requests] each.
    """

    numbers: NDArray[np.int64]
    scheduled_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    tokens: NDArray[np.int64]
    deadline_ms: NDArray[np.float64]
    hplms: NDArray[np.str_]
    kinds: NDArray[np.str_]
    reasons: NDArray[np.str_]
    levels: NDArray[np.str_]
    doubtful: NDArray[np.bool_]
    right: NDArray[np.float64]

    @classmethod
    def of(cls, schedule: Schedule, outcomes: Sequence[Outcome]) -> Requests:
        """The columns of outcomes of a whole schedule, in the order of its rows."""
        ordered = sorted(outcomes, key=lambda outcome: outcome.number)
        rows = np.array([outcome.number for outcome in ordered], np.int64)
        deadlines = np.zeros(len(rows)) if schedule.deadlines_ms is None else schedule.deadlines_ms[rows]
        return cls(
            numbers=rows,
            scheduled_s=schedule.times_s[rows],
            sent_s=np.array([outcome.sent_s for outcome in ordered], np.float64),
            done_s=np.array([outcome.done_s for outcome in ordered], np.float64),
            tokens=schedule.tokens[rows],
            deadline_ms=np.where(deadlines > 0, deadlines, np.nan),
            hplms=np.array(schedule.hplms, np.str_)[schedule.hplm_of[rows]],
            kinds=np.array([outcome.kind for outcome in ordered], np.str_),
            reasons=np.array([outcome.reason for outcome in ordered], np.str_),
            levels=np.array([outcome.level for outcome in ordered], np.str_),
            doubtful=np.array([outcome.doubtful for outcome in ordered], np.bool_),
            right=np.array([outcome.right for outcome in ordered], np.float64),
        )

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def answered(self) -> NDArray[np.bool_]:
        return np.equal(self.kinds, str(Kind.ANSWERED))

    @property
    def judged(self) -> NDArray[np.bool_]:
        """Answers of which it is known whether they are right."""
        return ~np.isnan(self.right)

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """The time since the planned moment, so that a client that falls behind hides nothing."""
        return self.done_s - self.scheduled_s

    @property
    def lag_s(self) -> NDArray[np.float64]:
        """The time from each request's planned moment until it was sent."""
        return self.sent_s - self.scheduled_s

    @property
    def in_time(self) -> NDArray[np.bool_]:
        return self.answered & ~(1000 * self.latency_s > self.deadline_ms)

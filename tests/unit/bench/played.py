"""Loads that were not played: requests with made up outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hplm_client import ClientError
from loadtest.in_process import Played
from loadtest.outcome import Outcome
from loadtest.requests import Requests
from loadtest.schedule import Row, Schedule
from loadtest.sender import Effort


class Ended(NamedTuple):
    """When a request of a tenth of a second's deadline ended, and with which error; never sent without a time."""

    done_s: float | None
    error: ClientError | None = None


def played(ends: Sequence[Ended]) -> Played:
    schedule = Schedule.of(Row(0.0, "acme/topics", "two words", 100) for _ in ends)
    outcomes = [
        Outcome.unsent(number, 0.2) if end.done_s is None else Outcome.of(number, 0.0, end.done_s, end.error)
        for number, end in enumerate(ends)
    ]
    return Played(Requests.of(schedule, outcomes), Effort(wall_s=1.0, cpu_s=0.1))

"""What master and workers say to each other, beside what Locust says itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from loadtest.outcome import Outcome
from loadtest.schedule import Schedule
from loadtest.sender import Target


class MessageName(StrEnum):
    SHARE = "hplm_share"
    """To a worker: what to send where."""
    ARMED = "hplm_armed"
    """To the master: the share is there and read."""
    GO = "hplm_go"
    """To all workers: when second 0 is, on the wall clock."""
    OUTCOMES = "hplm_outcomes"
    FINISHED = "hplm_finished"
    """To the master: every row of the share has its outcome, or what prevented that."""


@dataclass(frozen=True)
class Share:
    target: Target
    schedule: Schedule

    def to_message(self) -> dict[str, Any]:
        return {"target": asdict(self.target), "schedule": self.schedule.to_bytes()}

    @classmethod
    def from_message(cls, data: Mapping[str, Any]) -> Self:
        return cls(Target(**data["target"]), Schedule.from_bytes(data["schedule"]))


def outcomes_of(data: Mapping[str, Any]) -> list[Outcome]:
    return [Outcome(*row) for row in data["rows"]]

"""The messages between master and workers, beside Locust's own."""

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
    """Sent to a worker: its share of the load and the target."""
    REJECTED = "hplm_rejected"
    """Sent to a worker: the load goes on without it, and why."""
    ARMED = "hplm_armed"
    """Sent to the master: the share was received."""
    GO = "hplm_go"
    """Sent to all workers: when second 0 is, on the wall clock."""
    OUTCOMES = "hplm_outcomes"
    """Sent to the master: outcomes since the last such message."""
    FINISHED = "hplm_finished"
    """Sent to the master: every row of the share has its outcome, or the sender failed."""


@dataclass(frozen=True)
class Share:
    target: Target
    schedule: Schedule

    def to_message(self) -> dict[str, Any]:
        return {"target": asdict(self.target), "schedule": self.schedule.to_bytes()}

    @classmethod
    def from_message(cls, data: Mapping[str, Any]) -> Self:
        return cls(Target(**data["target"]), Schedule.from_bytes(data["schedule"]))


@dataclass(frozen=True)
class Finished:
    """The end of a worker's share: the failure of its sender, if any, and the CPU time of its process."""

    failure: str | None
    cpu_s: float


def outcomes_of(data: Mapping[str, Any]) -> list[Outcome]:
    return [Outcome(*row) for row in data["rows"]]

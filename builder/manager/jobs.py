"""What a job is, as a plain value, and which jobs have to wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True)
class JobSpec:
    """What was asked for: `target` is what the job changes, `needs` what must stay as it is meanwhile."""

    kind: str
    target: str
    needs: tuple[str, ...]
    uploads: tuple[str, ...]
    request: dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """How far the current phase is; `eta_s` is when it ends, if it goes on like this."""

    phase: str
    done: int
    total: int
    note: str = ""
    eta_s: float | None = None


@dataclass(frozen=True)
class Failure:
    code: str
    message: str


@dataclass(frozen=True)
class Worker:
    """Where a job runs: a process, told from a later one with the same number by when it began."""

    host: str
    pid: int
    created_s: float


@dataclass(frozen=True)
class Job:
    """A job as the database has it; times are seconds since 1970."""

    id: int
    spec: JobSpec
    state: JobState
    attempt: int
    created_s: float
    claimed_s: float | None
    finished_s: float | None
    heartbeat_s: float | None
    cancel_requested_s: float | None
    worker: Worker | None
    baseline: str | None
    progress: Progress | None
    interruption: str | None
    failure: Failure | None
    result: dict[str, Any] | None

    @property
    def is_finished(self) -> bool:
        return self.state not in UNFINISHED


def conflict(one: JobSpec, other: JobSpec) -> bool:
    """Whether the two must not run at the same time."""
    return one.target == other.target or one.target in other.needs or other.target in one.needs


def ready(unfinished: Sequence[Job]) -> list[Job]:
    """The queued jobs that wait for none; jobs come in the order of their IDs."""
    changed: set[str] = set()
    needed: set[str] = set()
    found = []
    for job in unfinished:
        spec = job.spec
        is_free = spec.target not in changed and spec.target not in needed and changed.isdisjoint(spec.needs)
        if is_free and job.state is JobState.QUEUED:
            found.append(job)
        changed.add(spec.target)
        needed.update(spec.needs)
    return found


def waits_for(job: Job, unfinished: Sequence[Job]) -> list[int]:
    """The earlier jobs that have to end before this one starts."""
    return [other.id for other in unfinished if other.id < job.id and conflict(job.spec, other.spec)]

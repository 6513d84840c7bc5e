"""Jobs as plain values, and which of them have to wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = (JobState.QUEUED, JobState.RUNNING)
QUICK = frozenset({"hplm.rollback", "hplm.pin", "hplm.delete", "domain.rollback", "domain.delete", "gc"})
"""Jobs of moments; they do not queue for a worker behind hours of training, and count for no quota."""


class JobSpec(BaseModel, frozen=True):
    """The request: `target` is what the job changes, `needs` what must stay as it is meanwhile."""

    kind: str
    target: str
    needs: tuple[str, ...] = ()
    uploads: tuple[str, ...] = ()
    request: dict[str, Any]

    def asks_the_same(self, other: JobSpec) -> bool:
        """Whether both come of one request; `needs` depend on what exists, which may have changed between them."""
        fields = JobSpec.model_fields.keys() - {"needs"}
        return self.model_dump(include=fields) == other.model_dump(include=fields)


class Progress(BaseModel, frozen=True):
    """The progress of the current phase."""

    phase: str = Field(examples=["compute fragments"])
    done: int
    total: int
    note: str = Field(examples=["loss 0.42"])
    eta_s: float | None = Field(description="Seconds to the end of this phase, if it goes on like this.")


class Failure(BaseModel, frozen=True):
    code: str = Field(description="For programs.", examples=["NOT_FOUND"])
    message: str = Field(description="For people: one line.", examples=["domain 'mini/shop' does not exist"])


class Worker(BaseModel, frozen=True):
    """The process of an attempt, distinguished from a later one with the same number.

    `created_s` is by the wall clock, which may be set later. `machine` and `start_ticks` are those of a `ProcessId`;
    records of earlier releases lack them.
    """

    host: str
    pid: int
    created_s: float
    machine: str | None = None
    start_ticks: int | None = None


class Job(JobSpec, frozen=True, from_attributes=True):
    """A job, read off its row; times are seconds since 1970."""

    id: int
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

    @property
    def is_cancel_requested(self) -> bool:
        return self.cancel_requested_s is not None


def hplm_targets(tenant: str) -> str:
    """Return what the targets of jobs about a tenant's hPLMs begin with."""
    return f"hplm:{tenant}/"


def conflict(one: JobSpec, other: JobSpec) -> bool:
    """Whether the two must not run at the same time."""
    return one.target == other.target or one.target in other.needs or other.target in one.needs


def ready(unfinished: Sequence[Job]) -> list[Job]:
    """The queued jobs that wait for none; jobs come in the order of their IDs."""
    changed: set[str] = set()
    needed: set[str] = set()
    found = []
    for job in unfinished:
        is_free = job.target not in changed and job.target not in needed and changed.isdisjoint(job.needs)
        if is_free and job.state is JobState.QUEUED:
            found.append(job)
        changed.add(job.target)
        needed.update(job.needs)
    return found


def waits_for(job: Job, unfinished: Sequence[Job]) -> list[int]:
    """The earlier jobs that have to end before this one starts."""
    return [other.id for other in unfinished if other.id < job.id and conflict(job, other)]

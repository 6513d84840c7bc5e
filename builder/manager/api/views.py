"""What the manager answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from backends.registry.entries import Version
from builder.manager.api.errors import ErrorDetail
from builder.manager.jobs import Job, JobState, waits_for
from builder.manager.uploads import Upload
from builder.requests.base import UploadKind


class UploadView(BaseModel):
    """A file that was taken; the same file again is the same upload."""

    id: str
    kind: UploadKind
    name: str = Field(description="As it was sent.", examples=["shop.txt"])
    size_bytes: int
    sha256: str
    summary: str = Field(description="What the check found in it.", examples=["1200 texts"])
    created_at: datetime


class UploadList(BaseModel):
    uploads: list[UploadView]


class ProgressView(BaseModel):
    """How far the current phase is."""

    phase: str = Field(examples=["compute fragments"])
    done: int
    total: int
    note: str = Field(examples=["loss 0.42"])
    eta_s: float | None = Field(description="Seconds to the end of this phase, if it goes on like this.")


class JobView(BaseModel):
    """A job and how far it is."""

    id: int
    kind: str = Field(examples=["domain.create"])
    target: str = Field(description="What it changes.", examples=["domain:mini/shop"])
    state: JobState
    attempt: int = Field(description="Counts up when a worker was lost and the job goes on in another one.")
    created_at: datetime
    started_at: datetime | None = Field(description="When the current attempt began.")
    finished_at: datetime | None
    heartbeat_at: datetime | None = Field(description="When its worker was last heard of.")
    cancel_requested: bool
    waits_for: list[int] = Field(description="Earlier jobs that have to end before this one starts.")
    worker: str | None = Field(description="Host and process of the current attempt.", examples=["gpu1:4711"])
    progress: ProgressView | None
    interruption: str | None = Field(description="How the last lost worker ended.")
    error: ErrorDetail | None = Field(description="Why it failed.")
    result: dict[str, Any] | None = Field(description="What it published.")
    request: dict[str, Any] = Field(description="What was asked for.")


class JobList(BaseModel):
    jobs: list[JobView]
    next_before: int | None = Field(description="Ask again with before=… for the next page; null on the last one.")


class RootView(BaseModel):
    name: str
    fingerprint: str


class DomainView(BaseModel):
    root: str
    name: str
    version: int
    metrics: dict[str, Any]


class HplmView(BaseModel):
    id: str
    version: int
    root: str
    domain: str = Field(description="Domain and version.", examples=["shop@2"])
    task: str
    labels: list[str]
    metrics: dict[str, Any]


class RootList(BaseModel):
    roots: list[RootView]


class DomainList(BaseModel):
    domains: list[DomainView]


class HplmList(BaseModel):
    hplms: list[HplmView]
    next_after: str | None = Field(description="Ask again with after=… for the next page; null on the last one.")


class VersionView(BaseModel):
    version: int
    live: bool
    published_at: datetime | None
    retired_at: datetime | None = Field(description="When it was live last, if it is not live now.")


class VersionList(BaseModel):
    versions: list[VersionView] = Field(description="The oldest first.")


class HplmLeaf(BaseModel):
    """A live hPLM; beside these, its main figure on the dev texts under its own name, such as `accuracy`."""

    model_config = ConfigDict(extra="allow")

    id: str
    version: int
    task: str
    pinned: str | None = Field(description="The domain version that it is held on.", examples=["shop@1"])


class DomainBranch(BaseModel):
    """One version of a domain, the live hPLMs on it, and what branches from it."""

    domain: str = Field(examples=["shop@2"])
    live: bool
    size_bytes: int | None
    hplms: list[HplmLeaf]
    domains: list[DomainBranch]


class RootTree(BaseModel):
    root: str
    domains: list[DomainBranch]


class Trees(BaseModel):
    trees: list[RootTree]


class Health(BaseModel):
    status: str = Field(examples=["ok"])
    queued: int
    running: int


def upload_view(upload: Upload) -> UploadView:
    content = asdict(upload)
    return UploadView(created_at=_at(content.pop("created_s")), **content)


def job_view(job: Job, unfinished: Sequence[Job] = ()) -> JobView:
    return JobView(
        id=job.id,
        kind=job.spec.kind,
        target=job.spec.target,
        state=job.state,
        attempt=job.attempt,
        created_at=_at(job.created_s),
        started_at=_at_if(job.claimed_s),
        finished_at=_at_if(job.finished_s),
        heartbeat_at=_at_if(job.heartbeat_s),
        cancel_requested=job.cancel_requested_s is not None,
        waits_for=waits_for(job, unfinished) if job.state is JobState.QUEUED else [],
        worker=f"{job.worker.host}:{job.worker.pid}" if job.worker else None,
        progress=ProgressView(**asdict(job.progress)) if job.progress else None,
        interruption=job.interruption,
        error=ErrorDetail(**asdict(job.failure)) if job.failure else None,
        result=job.result,
        request=job.spec.request,
    )


def version_list(history: Sequence[Version[Any]]) -> VersionList:
    return VersionList(
        versions=[
            VersionView(
                version=known.entry.version,
                live=known.is_live,
                published_at=_at_if(known.published_at),
                retired_at=_at_if(known.retired_at),
            )
            for known in history
        ]
    )


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _at_if(seconds: float | None) -> datetime | None:
    return None if seconds is None else _at(seconds)

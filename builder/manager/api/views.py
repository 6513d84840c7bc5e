"""Answers of the manager, each read off what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from builder.manager.jobs import Failure, Job, JobState, Progress, Worker, waits_for
from builder.requests.base import UploadKind


def _host_and_process(worker: Worker | None) -> str | None:
    return f"{worker.host}:{worker.pid}" if worker else None


class View(BaseModel):
    """An answer read off the attributes of what it shows; pydantic makes dates of seconds."""

    model_config = ConfigDict(from_attributes=True, json_schema_serialization_defaults_required=True)


class UploadView(View):
    """A file that was taken; the same file again is the same upload."""

    id: str
    kind: UploadKind
    name: str = Field(description="As it was sent.", examples=["shop.txt"])
    size_bytes: int
    sha256: str
    summary: str = Field(description="What the check found in it.", examples=["1200 texts"])
    created_at: datetime = Field(validation_alias="created_s")


class UploadList(View):
    uploads: list[UploadView]


class JobView(View):
    """A job and how far it is."""

    id: int
    kind: str = Field(examples=["domain.create"])
    target: str = Field(description="What it changes.", examples=["domain:mini/shop"])
    state: JobState
    attempt: int = Field(description="Counts up when a worker was lost and the job goes on in another one.")
    created_at: datetime = Field(validation_alias="created_s")
    started_at: datetime | None = Field(validation_alias="claimed_s", description="When the current attempt began.")
    finished_at: datetime | None = Field(validation_alias="finished_s")
    heartbeat_at: datetime | None = Field(
        validation_alias="heartbeat_s", description="When its worker was last heard of."
    )
    cancel_requested: bool = Field(validation_alias="is_cancel_requested")
    waits_for: list[int] = Field(
        default_factory=list, description="Earlier jobs that have to end before this one starts."
    )
    worker: Annotated[str | None, BeforeValidator(_host_and_process)] = Field(
        description="Host and process of the current attempt.", examples=["gpu1:4711"]
    )
    progress: Progress | None
    interruption: str | None = Field(description="How the last lost worker ended.")
    error: Failure | None = Field(validation_alias="failure", description="Why it failed.")
    result: dict[str, Any] | None = Field(description="What it published.")
    request: dict[str, Any] = Field(description="What was asked for.")

    @classmethod
    def of(cls, job: Job, unfinished: Sequence[Job]) -> Self:
        """View a job among those that are not finished."""
        earlier = waits_for(job, unfinished) if job.state is JobState.QUEUED else []
        return cls.model_validate(job).model_copy(update={"waits_for": earlier})


class JobList(BaseModel):
    jobs: list[JobView]
    next_before: int | None = Field(description="Ask again with before=… for the next page; null on the last one.")


class RootView(View):
    name: str
    fingerprint: str


class DomainView(View):
    root: str
    name: str
    version: int
    metrics: dict[str, Any]


class HplmView(View):
    id: str
    version: int
    root: str = Field(validation_alias=AliasPath("domain", "root"))
    domain: str = Field(
        validation_alias=AliasPath("domain", "label"), description="Domain and version.", examples=["shop@2"]
    )
    task: str
    labels: list[str]
    metrics: dict[str, Any]


class RootList(View):
    roots: list[RootView]


class DomainList(View):
    domains: list[DomainView]


class HplmList(View):
    hplms: list[HplmView]
    next_after: str | None = Field(description="Ask again with after=… for the next page; null on the last one.")


class VersionView(View):
    version: int = Field(validation_alias=AliasPath("entry", "version"))
    live: bool = Field(validation_alias="is_live")
    published_at: datetime | None
    retired_at: datetime | None = Field(description="When it was live last, if it is not live now.")


class VersionList(View):
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

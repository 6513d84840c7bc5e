"""Requests become queued jobs; one that is certain to fail later is rejected now."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from backends.errors import ConflictError, NotFoundError
from backends.registry.registry import Registry
from backends.scheduling.tenants import tenant_of
from builder.levels.target import check_target
from builder.manager.callers import ANYBODY, Caller
from builder.manager.jobs import Job, JobSpec
from builder.manager.quotas import require_job_quota
from builder.manager.store import JobStore
from builder.manager.targets import exists
from builder.manager.uploads import Uploads
from builder.requests.hplms import HplmRequest, SelectHplm, Training, UpdateHplm
from builder.requests.jobs import JobRequest
from builder.requests.levels import LadderTarget
from builder.requests.targets import Target
from builder.settings.hplm import TuneSettings


@dataclass(frozen=True)
class Admission:
    registry: Registry
    store: JobStore
    uploads: Uploads
    _uploads_may_go: threading.Lock = field(default_factory=threading.Lock)
    """Held from the look at uploads to the job that names them, and while an upload is deleted."""

    def submit(self, request: JobRequest, idempotency_key: str | None, caller: Caller = ANYBODY) -> tuple[Job, bool]:
        """Queue a job for a request; False if the key's job was there already, whatever has become of it since."""
        caller.require_request(request, self.uploads.get)
        if idempotency_key is not None and caller.tenant is not None:
            idempotency_key = f"{caller.tenant}/{idempotency_key}"
        settled = request.settled(self.registry)
        spec = self._inherit_needs_from_pending_creation(spec_of(settled))
        known = self.store.submitted_before(spec, idempotency_key) if idempotency_key else None
        if known is not None:
            return known, False
        with self._uploads_may_go:
            self._check(settled)
            if isinstance(settled, HplmRequest):
                require_job_quota(self.registry, self.store, tenant_of(settled.id), settled.kind, time.time())
            return self.store.submit(spec, idempotency_key, caller.shown)

    def delete_upload(self, upload_id: str) -> None:
        """Remove an upload that no unfinished job reads."""
        with self._uploads_may_go:
            for job in self.store.unfinished():
                if upload_id in job.uploads:
                    raise ConflictError(f"upload {upload_id} is needed by job {job.id}")
            self.uploads.delete(upload_id)

    def _inherit_needs_from_pending_creation(self, spec: JobSpec) -> JobSpec:
        """Let the update of an hPLM that an earlier job still makes go on with that job's domain."""
        creations = [job for job in self.store.unfinished() if job.target == spec.target and job.needs]
        if spec.kind != "hplm.update" or spec.needs or not creations:
            return spec
        return spec.model_copy(update={"needs": creations[-1].needs})

    def _check(self, request: JobRequest) -> None:
        """Targets that an unfinished job is at work on are looked at only when their turn comes."""
        for upload, kind in request.files.items():
            self.uploads.content(str(upload), kind)
        TuneSettings().changed(request.tune_changes)
        if (ladder := _ladder_of(request)) is not None:
            check_target(ladder, goes_on=isinstance(request, SelectHplm | UpdateHplm))
        unfinished = self.store.unfinished()
        if request.needed is not None:
            self._require(request.needed, unfinished)
        if request.target is not None:
            check = self._require if request.target_must_exist else self._require_absent
            check(request.target, unfinished)

    def _require(self, target: Target, unfinished: Sequence[Job]) -> None:
        if not exists(target, self.registry) and not _is_worked_on(target, unfinished):
            raise NotFoundError(f"{target.what} does not exist")

    def _require_absent(self, target: Target, unfinished: Sequence[Job]) -> None:
        if exists(target, self.registry) and not _is_worked_on(target, unfinished):
            raise ConflictError(f"{target.what} exists already; an update makes a new version of it")


def spec_of(request: JobRequest) -> JobSpec:
    """The job of a request whose root is filled in."""
    needed = request.needed
    return JobSpec(
        kind=request.kind,
        target=str(request.target or request.kind),
        needs=(str(needed),) if needed else (),
        uploads=tuple(map(str, request.files)),
        request=request.model_dump(mode="json"),
    )


def _ladder_of(request: JobRequest) -> LadderTarget | None:
    match request:
        case LadderTarget():
            return request
        case Training():
            return request.ladder
        case _:
            return None


def _is_worked_on(target: Target, unfinished: Sequence[Job]) -> bool:
    return any(job.target == str(target) for job in unfinished)

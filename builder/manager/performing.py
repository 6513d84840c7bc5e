"""From a stored request to what serves it; what takes moments does not wait for the builders' libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backends.home import Home
from backends.registry.registry import Registry
from builder.executors.mapping import ParallelMap
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.lifecycle.rollback import rollback_domain, rollback_hplm
from builder.manager.requests import (
    CollectGarbage,
    DeleteDomain,
    DeleteHplm,
    JobRequest,
    PinHplm,
    RollbackDomain,
    RollbackHplm,
)
from builder.manager.targets import described
from builder.manager.uploads import UploadKind, Uploads
from builder.progress import Report


@dataclass(frozen=True)
class Workplace:
    """What every job works with."""

    home: Home
    registry: Registry
    uploads: Uploads
    report: Report
    fan_out: ParallelMap

    def files(self, uploads: Sequence[str], kind: UploadKind) -> tuple[Path, ...]:
        return tuple(self.uploads.content(upload, kind) for upload in uploads)

    def file(self, upload: str | None, kind: UploadKind) -> Path | None:
        return None if upload is None else self.uploads.content(upload, kind)


def perform(at: Workplace, request: JobRequest) -> dict[str, Any]:
    """Do what was asked for; the answer is the job's result."""
    match request:
        case CollectGarbage():
            report = collect_garbage(at.home, at.registry, GarbageSettings(keep=request.keep), request.dry_run)
            return {**asdict(report), "size_bytes": report.size_bytes}
        case RollbackDomain():
            rollback_domain(at.home, at.registry, request.root_name, request.name, request.version)
        case DeleteDomain():
            at.registry.delete_domain(request.root_name, request.name)
        case RollbackHplm():
            rollback_hplm(at.home, at.registry, request.id, request.version)
        case PinHplm() if request.pinned:
            at.registry.pin_hplm(request.id, request.version)
        case PinHplm():
            at.registry.unpin_hplm(request.id)
        case DeleteHplm():
            at.registry.delete_hplm(request.id)
        case _:
            from builder.manager.building import build

            build(at, request)
    return described(request.target, at.registry)

"""Running a stored request; what takes moments does not wait for the builders' libraries."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from builder.lifecycle.deletion import delete_domain
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.lifecycle.rollback import rollback_domain, rollback_hplm, unusable_students
from builder.manager.job_context import JobContext
from builder.manager.targets import WITHOUT_STUDENTS, described
from builder.requests.domains import DeleteDomain, RollbackDomain
from builder.requests.hplms import DeleteHplm, PinHplm, RollbackHplm
from builder.requests.jobs import CollectGarbage, JobRequest


def run_job(ctx: JobContext, request: JobRequest) -> dict[str, Any]:
    """Do what a request asks for; returns the job's result."""
    match request:
        case CollectGarbage():
            report = collect_garbage(ctx.home, ctx.registry, GarbageSettings(keep=request.keep), request.dry_run)
            return {**asdict(report), "size_bytes": report.size_bytes}
        case RollbackDomain():
            rollback_domain(ctx.home, ctx.registry, request.root_name, request.name, request.version)
        case DeleteDomain():
            delete_domain(ctx.home, ctx.registry, request.root_name, request.name)
        case RollbackHplm():
            entry = rollback_hplm(ctx.home, ctx.registry, request.id, request.version)
            reason = unusable_students(ctx.home, entry)
            return described(request.target, ctx.registry) | ({} if reason is None else {WITHOUT_STUDENTS: reason})
        case PinHplm() if request.pinned:
            ctx.registry.pin_hplm(request.id, request.version)
        case PinHplm():
            ctx.registry.unpin_hplm(request.id)
        case DeleteHplm():
            ctx.registry.delete_hplm(request.id)
        case _:
            from builder.manager.building import build

            said = build(ctx, request)
            return described(request.target, ctx.registry) | said
    return described(request.target, ctx.registry)

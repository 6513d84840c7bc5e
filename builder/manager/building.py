"""The requests that take a builder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from builder.construct.domain.domains import create_domain, update_domain
from builder.construct.hplm.hplms import create_hplm, update_hplm
from builder.importing.hplms import import_hplm
from builder.manager.archives import unpack
from builder.manager.job_context import JobContext
from builder.manager.naming import replacing_path_in_errors
from builder.requests.domains import CreateDomain, UpdateDomain
from builder.requests.hplms import CreateHplm, ImportHplm, UpdateHplm

BuildRequest = CreateDomain | UpdateDomain | CreateHplm | UpdateHplm | ImportHplm


def build(ctx: JobContext, request: BuildRequest) -> None:
    """Build what a request asks for, whose files are uploads, and make it live."""
    located = request.with_files(ctx.upload_paths(request))
    match located:
        case CreateDomain():
            create_domain(ctx.home, ctx.registry, located, ctx.report, ctx.fan_out)
        case UpdateDomain():
            update_domain(ctx.home, ctx.registry, located, ctx.report, ctx.fan_out)
        case CreateHplm():
            create_hplm(ctx.home, ctx.registry, located, ctx.report)
        case UpdateHplm():
            update_hplm(ctx.home, ctx.registry, located, ctx.report)
        case ImportHplm():
            _import(ctx, located)


def _import(ctx: JobContext, request: ImportHplm) -> None:
    """Import a zipped adapter folder."""
    with tempfile.TemporaryDirectory(prefix="hplm-import-") as temporary:
        folder = Path(temporary)
        with replacing_path_in_errors(folder, "the adapter"):
            content = unpack(request.adapter, folder)
            import_hplm(ctx.home, ctx.registry, request.with_files({request.adapter: content}), ctx.report)

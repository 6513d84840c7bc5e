"""The requests that take a builder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from backends.errors import InvalidArgumentError
from backends.registry.entries import HplmEntry
from backends.root.student_set import StudentSet
from backends.wire import EARLY
from builder.construct.domain.domains import create_domain, update_domain
from builder.construct.hplm.hplms import create_hplm, update_hplm
from builder.construct.students.add import add_students
from builder.construct.students.make import make_students
from builder.importing.hplms import import_hplm
from builder.levels.exit_layers import as_layers
from builder.levels.material import LabelledFiles, UnlabelledFile
from builder.levels.plan import LadderPlan, Outcome, plan_creation, plan_update
from builder.levels.selecting import Selecting, Selection, select_ladder
from builder.levels.served_stack import served_stack, warning_of_missing
from builder.levels.target import Target
from builder.manager.archives import unpack
from builder.manager.job_context import JobContext
from builder.manager.naming import replacing_path_in_errors
from builder.manager.pulse import JobCancelledError
from builder.manager.targets import WARNINGS, WITHOUT_LADDER, WITHOUT_STUDENTS
from builder.requests.domains import CreateDomain, UpdateDomain
from builder.requests.hplms import CreateHplm, ImportHplm, SelectHplm, UpdateHplm
from builder.requests.students import AddStudents, MakeStudents

BuildRequest = (
    CreateDomain | UpdateDomain | CreateHplm | UpdateHplm | SelectHplm | ImportHplm | MakeStudents | AddStudents
)


def build(ctx: JobContext, request: BuildRequest) -> dict[str, Any]:
    """Build what a request asks for, whose files are uploads, and make it live; returns what else there is to say."""
    located = request.with_files(ctx.upload_paths(request))
    match located:
        case CreateDomain():
            create_domain(ctx.home, ctx.registry, located, ctx.report, ctx.fan_out)
        case UpdateDomain():
            update_domain(ctx.home, ctx.registry, located, ctx.report, ctx.fan_out)
        case CreateHplm():
            plan = plan_creation(ctx.home, located)
            entry = create_hplm(ctx.home, ctx.registry, located, ctx.report, noted=plan.figures, fan_out=ctx.fan_out)
            return _with_ladder(ctx, plan, entry)
        case UpdateHplm():
            return _update(ctx, located)
        case SelectHplm():
            return _select(ctx, located)
        case ImportHplm():
            return _import(ctx, located)
        case MakeStudents():
            return _described(make_students(ctx.home, ctx.registry, located, ctx.report))
        case AddStudents():
            add_students(ctx.home, ctx.registry, located, ctx.report)
    return {}


def _described(students: StudentSet) -> dict[str, Any]:
    return {
        "fingerprint": students.fingerprint,
        "students": students.shape.count,
        "layers": students.shape.layers,
        "width": students.shape.width,
        "depth": students.depth,
        "fidelity": [dict(figures) for figures in students.fidelity],
    }


def _update(ctx: JobContext, request: UpdateHplm) -> dict[str, Any]:
    plan, before = plan_update(ctx.home, ctx.registry, request), ctx.registry.hplm(request.id)
    entry = update_hplm(ctx.home, ctx.registry, request, ctx.report, noted=plan.figures, fan_out=ctx.fan_out)
    return _with_ladder(ctx, plan, entry) | _dropped_students(before, entry)


def _dropped_students(before: HplmEntry | None, entry: HplmEntry) -> dict[str, Any]:
    if before is None or before.best_students == 0:
        return {}
    return {WITHOUT_STUDENTS: f"the version before {entry.version} had some; students.add adds them"}


def _dropped_ladder(before: HplmEntry | None, entry: HplmEntry) -> dict[str, Any]:
    if before is None or EARLY not in before.levels:
        return {}
    return {WITHOUT_LADDER: f"the version before {entry.version} had one; hplm.select makes one"}


def _with_ladder(ctx: JobContext, plan: LadderPlan, entry: HplmEntry) -> dict[str, Any]:
    """Select for a version that is live already, so that a job which is cancelled meanwhile is done all the same."""
    try:
        outcome = plan.select(ctx.home, ctx.registry, entry, ctx.report)
    except JobCancelledError:
        return {WITHOUT_LADDER: f"the job was cancelled after version {entry.version} was live; hplm.select makes one"}
    return _selected(ctx, outcome)


def _selected(ctx: JobContext, outcome: Outcome | Selection) -> dict[str, Any]:
    """Say why there is no ladder, and what may not hold of one."""
    without = {} if outcome.reason is None else {WITHOUT_LADDER: outcome.reason}
    missing = warning_of_missing(ctx.home)
    warnings = [*outcome.warnings, *([] if missing is None or without else [missing])]
    return without | ({WARNINGS: warnings} if warnings else {})


def _select(ctx: JobContext, request: SelectHplm) -> dict[str, Any]:
    files: LabelledFiles | UnlabelledFile
    if request.unlabelled is not None:
        files = UnlabelledFile(request.unlabelled)
    elif request.train is not None and request.held_out is not None:
        files = LabelledFiles(request.train, request.held_out)
    else:
        raise InvalidArgumentError("train and held_out are needed, or unlabelled")
    target = Target.requested(request, Target.of_version(ctx.registry.hplm(request.id).metrics))
    selecting = Selecting(request.id, files, target, as_layers(request.after))
    found = select_ladder(ctx.home, ctx.registry, selecting, served_stack(ctx.home), ctx.report)
    return _selected(ctx, found)


def _import(ctx: JobContext, request: ImportHplm) -> dict[str, Any]:
    """Import a zipped adapter folder."""
    before = ctx.registry.hplm(request.id) if ctx.registry.has_hplm(request.id) else None
    with tempfile.TemporaryDirectory(prefix="hplm-import-") as temporary:
        folder = Path(temporary)
        with replacing_path_in_errors(folder, "the adapter"):
            content = unpack(request.adapter, folder)
            unpacked = request.with_files({request.adapter: content})
            entry = import_hplm(ctx.home, ctx.registry, unpacked, ctx.report, is_uploaded=True)
    return _dropped_students(before, entry) | _dropped_ladder(before, entry)

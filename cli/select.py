"""`hplm select`: which texts may be answered early, at a cost that held-out texts certify."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backends.errors import InvalidArgumentError
from backends.home import Home
from cli.exit_codes import THRESHOLD_MISSED
from cli.ladder_options import TargetOptions
from cli.next_command import command_on
from cli.option_groups import grouped
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_entry, print_rows
from cli.progress import resumable_progress
from cli.session import open_home

if TYPE_CHECKING:
    from backends.registry.entries import HplmEntry
    from backends.registry.registry import Registry
    from builder.levels.material import LabelledFiles, UnlabelledFile
    from builder.levels.profile import Profile
    from builder.levels.selecting import Selecting, Selection
    from builder.requests.levels import LadderTarget


_FAILED_BEFORE = (
    "this is the very ladder that has failed a server's audit, so texts go on through all layers; select it from texts "
    "like those that are asked for today"
)


def register(app: typer.Typer) -> None:
    app.command()(grouped(select))


def select(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The hPLM, as tenant/name; or --all.")] = None,
    train: Annotated[
        Path | None, typer.Option(help="What the early head learns from, as 'hplm create' has it.")
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(help="Labelled texts that certify; those that were trained on are left out of them."),
    ] = None,
    unlabelled: Annotated[
        Path | None,
        typer.Option(
            help="In place of both: plain texts, a line each (pairs with a TAB between). They certify --agreement."
        ),
    ] = None,
    *,
    targeted: TargetOptions,
    every: Annotated[
        bool, typer.Option("--all", help="Every hPLM, by the texts of --unlabelled; one that fails stops none.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Draw there what each threshold would lose, and what was chosen; of one hPLM.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Change nothing; print what was selected before.")] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Let texts that are sure after some layers be answered there, at a certified cost.

    The next version has the same weights and a ladder of two levels, early and full. 'hplm rollback' goes back.
    """
    opened, registry = open_home(home)
    if every == (id is not None):
        raise InvalidArgumentError("either the ID of an hPLM, or --all")
    if every and svg is not None:
        raise InvalidArgumentError("--svg draws the candidates of one hPLM, not of --all")
    if svg is not None and not svg.parent.is_dir():
        raise InvalidArgumentError(f"{svg.parent}, where --svg is to be written, is no folder")
    if show:
        _show(opened, registry, id, svg, as_json)
        return
    files = _files(train, held_out, unlabelled, every)
    from builder.levels.exit_layers import as_layers
    from builder.levels.material import UnlabelledFile
    from builder.levels.selecting import Selecting
    from builder.levels.target import Target

    requested = targeted.requested()
    after = as_layers(requested.after)
    if id is not None:
        target = Target.requested(requested, Target.of_version(registry.hplm(id).metrics))
        found = _select_one(opened, registry, Selecting(id, files, target, after))
        _print_levels(_told(found), found.profile, svg, as_json)
    elif isinstance(files, UnlabelledFile):
        _select_all(opened, registry, files, requested, after, as_json)


def _told(found: Selection) -> dict[str, Any]:
    """Say which levels the live version has, and what was found; of a ladder that stays nothing was proven now."""
    from builder.levels.selecting import levels_of

    levels = levels_of(found.entry)
    if found.ladder is None:
        levels = {name: levels[name] for name in ("id", "version", "levels")}
    return levels | found.figures


def _show(home: Home, registry: Registry, id: str | None, svg: Path | None, as_json: bool) -> None:
    if id is not None:
        entry = registry.hplm(id)
        _print_levels(_shown(home, entry), _profile_of(home, entry), svg, as_json)
        return
    told = [_shown(home, entry) for entry in registry.hplms()]
    columns = ("id", "version", "levels", "target", "guarantee", "answered_early", "bound", "audit")
    print_rows([{column: one.get(column) for column in columns} for one in told], "Levels", as_json)


def _profile_of(home: Home, entry: HplmEntry) -> Profile | None:
    """Read the profile of a version's selection; of students that were added later it says nothing."""
    from builder.levels.profile import read_profile
    from builder.levels.student_counts import COMPARED

    profile = read_profile(home.path / entry.folder)
    if profile is None or COMPARED in entry.metrics.get("students", {}):
        return profile
    return replace(profile, students=[])


def _shown(home: Home, entry: HplmEntry) -> dict[str, Any]:
    """Say which levels a version has, and whether a server's audit has found that its ladder promises too much."""
    from backends.engine.failed_audits import noted_failures
    from builder.levels.selecting import levels_of

    found = [f"{noted.get('different', '?')} of {noted.get('texts', '?')}" for noted in noted_failures(home, entry)]
    return levels_of(entry) | ({"audit": f"failed: {' and '.join(found)} differed"} if found else {})


def _print_levels(told: dict[str, Any], profile: Profile | None, svg: Path | None, as_json: bool) -> None:
    """Print what was selected and all candidates of it, and draw these if a file is named."""
    from builder.levels.profile_picture import draw_profile

    if profile is None and svg is not None:
        raise InvalidArgumentError(
            f"hPLM {told['id']!r} has no candidates to draw: it has no ladder, or one of an earlier release"
        )
    if profile is not None and svg is not None:
        svg.write_text(draw_profile(profile), encoding="utf-8")
    if profile is None or as_json:
        print_entry(told if profile is None else {**told, **_tables(profile)}, as_json)
        return
    print_entry(told, as_json)
    print_rows(profile.rows, "candidates", as_json)
    if profile.students:
        print_rows([asdict(each) for each in profile.students], "students, in place of all layers", as_json)


def _tables(profile: Profile) -> dict[str, Any]:
    students = [asdict(each) for each in profile.students]
    return {"candidates": profile.rows} | ({"students": students} if students else {})


def _files(
    train: Path | None, held_out: Path | None, unlabelled: Path | None, every: bool
) -> LabelledFiles | UnlabelledFile:
    from builder.levels.material import LabelledFiles, UnlabelledFile

    if unlabelled is not None and (train is not None or held_out is not None):
        raise InvalidArgumentError("either --unlabelled, or --train and --held-out")
    if unlabelled is not None:
        return UnlabelledFile(unlabelled)
    if every:
        raise InvalidArgumentError("--all goes by --unlabelled: labelled texts are of one hPLM")
    if train is None or held_out is None:
        raise InvalidArgumentError(
            "--train and --held-out are needed, or --unlabelled; --show prints what was selected before"
        )
    return LabelledFiles(train, held_out)


def _select_one(home: Home, registry: Registry, selecting: Selecting) -> Selection:
    """Select for one hPLM, and say on stderr what the user has to know."""
    from backends.engine.failed_audits import noted_failures
    from builder.levels.selecting import select_ladder
    from builder.levels.served_stack import served_stack

    before = registry.hplm(selecting.id).version
    with resumable_progress(selecting.id) as report:
        found = select_ladder(home, registry, selecting, served_stack(home), report)
    if found.reason is not None:
        typer.echo(found.reason, err=True)
    for warning in found.warnings:
        typer.echo(warning, err=True)
    if found.ladder is not None and noted_failures(home, found.entry):
        typer.echo(_FAILED_BEFORE, err=True)
    if found.entry.version != before:
        typer.echo(f"'{command_on(home, f'hplm rollback {selecting.id}')}' goes back to version {before}", err=True)
    warn_of_missing(home)
    return found


def _select_all(
    home: Home,
    registry: Registry,
    files: UnlabelledFile,
    requested: LadderTarget,
    after: tuple[int, ...],
    as_json: bool,
) -> None:
    from builder.levels.selecting_all import KEPT, SELECTED, select_all
    from builder.levels.served_stack import served_stack

    with resumable_progress("all hPLMs", command_on(home, "hplm select --all --show")) as report:
        rows = select_all(home, registry, files, requested, after, served_stack(home), report)
    print_rows(rows, "Selected", as_json)
    warn_of_missing(home)
    if not all(row["outcome"].startswith((SELECTED, KEPT)) for row in rows):
        raise typer.Exit(THRESHOLD_MISSED)


def warn_of_missing(home: Home) -> None:
    from builder.levels.served_stack import warning_of_missing

    if (warning := warning_of_missing(home)) is not None:
        typer.echo(warning, err=True)

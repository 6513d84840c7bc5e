"""Commands about students: the short stacks that answer in place of a root's upper layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from backends.errors import InvalidArgumentError, NotFoundError
from builder.settings.device import AUTO
from cli.next_command import command_on
from cli.options import DEFAULT_HOME, DeviceOption, HomeOption, JsonOption, print_entry, print_json, print_rows
from cli.progress import resumable_progress
from cli.session import open_home

if TYPE_CHECKING:
    from backends.home import Home
    from backends.registry.entries import HplmEntry
    from backends.registry.registry import Registry
    from backends.root.student_set import StudentSet
    from builder.settings.students import StudentSettings

_DIGITS = 4
app = typer.Typer(help="Short stacks of layers that answer in place of the upper layers.", no_args_is_help=True)


@app.command()
def make(
    root: Annotated[str, typer.Argument(help="The root whose upper layers the students learn from.")],
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            "--corpus",
            help="A text file, one text per line; may be repeated. \\[default: those the root was made from]",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(help="How many students. \\[default: as many as lower the error, of at most 3/4 of the layers]"),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Layers of each. \\[default: 2, where there are fewer than 4 upper layers 1]")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            help="Width of each, a multiple of the width of the root's attention heads: half of the root's is about "
            "twice as fast. \\[default: the root's]"
        ),
    ] = None,
    wiring: Annotated[
        Literal["chained", "parallel"] | None,
        typer.Option(
            help="What each one reads: in a chain what the one before computed; parallel ones all read the same, and "
            "add up. \\[default: chained]"
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Distillation steps of each narrow or parallel one. \\[default: 700]")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate. \\[default: 0.002]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random. \\[default: 17]")] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace students that are there; 'hplm students add' adapts hPLMs again."),
    ] = False,
    device: DeviceOption = AUTO,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Make a root's students, which all its hPLMs share: its first upper layers, in a chain.

    Narrow and parallel ones are distilled, which takes minutes; when it is interrupted, the same command goes on where
    it was.
    """
    from builder.construct.students.make import make_students
    from builder.requests.students import MakeStudents

    sizes = {"count": count, "layers": layers, "width": width, "wiring": wiring, "seed": seed}
    settings = _settings({**sizes, "steps": steps, "learning_rate": learning_rate})
    opened, registry = open_home(home)
    request = MakeStudents(root=root, corpus=corpus or [], settings=settings, replace=replace, device=device)
    then = command_on(opened, "hplm students add ID --train FILE --dev FILE")
    with resumable_progress(f"students of {root}", then) as report:
        made = make_students(opened, registry, request, report)
    _print_set(root, made, as_json)


def _settings(options: Mapping[str, Any]) -> StudentSettings:
    """Return the settings of the options that were given.

    Raises:
        InvalidArgumentError: They say how students learn that learn nothing.
    """
    from builder.settings.students import StudentSettings

    given = {name: value for name, value in options.items() if value is not None}
    settings = StudentSettings(**given)
    if not settings.learns and given.keys() & {"steps", "learning_rate"}:
        raise InvalidArgumentError(
            "a chain as wide as its root learns nothing: --steps and --learning-rate go with --width or --wiring "
            "parallel"
        )
    return settings


@app.command()
def add(
    id: Annotated[str, typer.Argument(metavar="ID", help="The hPLM, as tenant/name.")],
    train: Annotated[Path, typer.Option(help="Texts to learn from, as 'hplm create' has them.")],
    dev: Annotated[Path, typer.Option(help="Examples to choose the best epoch and the number of students by.")],
    unlabelled: Annotated[
        Path | None,
        typer.Option(
            help="Texts like those of the task, a line each (pairs with a TAB between), that the hPLM answers too. "
            "\\[default: rewritten ones]"
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of the adapters. \\[default: 16]")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the texts, at most. \\[default: 2]")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate. \\[default: 0.002]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random. \\[default: 17]")] = None,
    device: DeviceOption = AUTO,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Teach an hPLM, also an imported one, to answer by its root's students: its own answers are what they learn.

    The next version has the same weights, and adapters and heads for students beside them. 'hplm rollback' goes back.
    """
    opened, registry = open_home(home)
    given: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "seed": seed}
    tune = {name: value for name, value in given.items() if value is not None}
    if rank is not None:
        tune["recipe"] = {"rank": rank}
    entry = add_to(opened, registry, id, train, dev, unlabelled, tune, device)
    print_entry({"id": entry.id, "version": entry.version, **entry.metrics["students"]}, as_json)


def add_to(
    home: Home,
    registry: Registry,
    id: str,
    train: Path,
    dev: Path,
    unlabelled: Path | None = None,
    tune: dict[str, Any] | None = None,
    device: str = AUTO,
    goes_on_by: str = "the same command",
) -> HplmEntry:
    """Add students to the live version of an hPLM, and say on stderr how to go back.

    `goes_on_by` names what goes on after an interruption.
    """
    from builder.construct.students.add import add_students
    from builder.requests.students import AddStudents

    before = registry.hplm(id).version
    request = AddStudents(id=id, train=train, dev=dev, unlabelled=unlabelled, tune=tune or {}, device=device)
    with resumable_progress(f"students of {id}", goes_on_by=goes_on_by) as report:
        entry = add_students(home, registry, request, report)
    back = command_on(home, f"hplm rollback {id}")
    typer.echo(f"'{back}' goes back to version {before}, without these students", err=True)
    return entry


def say_dropped(home: Home, before: HplmEntry, entry: HplmEntry) -> None:
    """Say on stderr that a version has no students where the one before had some."""
    if before.best_students > entry.best_students:
        adds = command_on(home, f"hplm students add {entry.id} --train FILE --dev FILE")
        typer.echo(f"version {entry.version} has no students; the one before had: '{adds}' adds them", err=True)


@app.command()
def show(
    root: Annotated[str, typer.Argument(help="The root.")],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """A root's students: sizes, how they were made, and how near the first m of them come to the upper layers."""
    from backends.root.store import RootFolder
    from backends.root.student_set import read_students

    opened, registry = open_home(home)
    found = read_students(RootFolder(opened.root(registry.root(root).name)))
    if found is None:
        makes = command_on(opened, f"hplm students make {root}")
        raise NotFoundError(f"root {root!r} has no students; '{makes}' makes some")
    _print_set(root, found, as_json)


def _print_set(root: str, students: StudentSet, as_json: bool) -> None:
    described = _described(root, students)
    if as_json:
        print_json(described)
        return
    fidelity = described.pop("fidelity")
    print_entry(described, as_json=False)
    print_rows(fidelity, "the first students against the upper layers", as_json=False)


def _described(root: str, students: StudentSet) -> dict[str, Any]:
    from builder.construct.students.make import INPUTS

    shape = students.shape
    return {
        "root": root,
        "fingerprint": students.fingerprint,
        "students": shape.count,
        "layers": shape.layers,
        "width": shape.width,
        "depth": round(students.depth, _DIGITS),
        "wiring": shape.wiring,
        "fidelity": [{"students": number, **each} for number, each in enumerate(students.fidelity, start=1)],
        **{name: value for name, value in students.origin.items() if name != INPUTS},
    }

"""`hplm select`: which texts may be answered early, at a cost that held-out texts certify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backends.errors import InvalidArgumentError
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_entry
from cli.progress import resumable_progress
from cli.session import open_home


def register(app: typer.Typer) -> None:
    app.command()(select)


def select(
    id: Annotated[str, typer.Argument(metavar="ID", help="The hPLM, as tenant/name.")],
    train: Annotated[
        Path | None, typer.Option(help="What the early head learns from, as 'hplm create' has it.")
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(help="Labelled texts that certify; those that were trained on are left out of them."),
    ] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="Points of accuracy that may be lost against all layers. \\[default: 1]")
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="In place of --max-drop: the least accuracy of all answers, as 0.9.")
    ] = None,
    agreement: Annotated[
        float | None, typer.Option(help="In place of --max-drop: the least share of answers that stay, as 0.98.")
    ] = None,
    certainty: Annotated[float, typer.Option(help="How likely the promise holds.")] = 0.9,
    after: Annotated[
        int | None, typer.Option(help="Layers before the early answer. \\[default: a third, at least 2]")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Change nothing; print what was selected before.")] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Let texts that are sure after some layers be answered there, at a certified cost.

    The next version has the same weights and a ladder of two levels, early and full. 'hplm rollback' goes back.
    """
    from builder.levels.selecting import Selecting, levels_of, select_ladder
    from builder.levels.target import Target

    opened, registry = open_home(home)
    if show:
        print_entry(levels_of(registry.hplm(id)), as_json)
        return
    if train is None or held_out is None:
        raise InvalidArgumentError("--train and --held-out are needed; --show prints what was selected before")
    target = Target.of(max_drop, target_accuracy, agreement, certainty)
    import torch

    from backends.engine.settings import EngineSettings
    from builder.export.in_force import effective_settings
    from builder.export.rendered import upper_settings

    settings, on_gpu = upper_settings(opened)
    if on_gpu and not torch.cuda.is_available():
        raise InvalidArgumentError("the export is for a GPU, which PyTorch does not find here; select where it serves")
    stack = EngineSettings.from_model(settings, "cuda:0" if on_gpu else "cpu").stack
    before = registry.hplm(id).version
    with resumable_progress(id) as report:
        found = select_ladder(opened, registry, Selecting(id, train, held_out, target, after), stack, report)
    print_entry(levels_of(found.entry) | found.figures, as_json)
    if found.reason is not None:
        typer.echo(found.reason, err=True)
    if found.entry.version != before:
        typer.echo(f"'hplm rollback {id}' goes back to version {before}", err=True)
    missing = effective_settings(opened.repository).get("lower missing", "compute")
    if missing != "compute":
        typer.echo(
            f"the export has --missing {missing}: the certificate is of texts whose fragments are all there", err=True
        )

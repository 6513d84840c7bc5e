"""Help: groups, examples that parse, the version."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import click
import pytest
import typer

from cli.app import app
from cli.help import commands

COMMAND: click.Command = typer.main.get_command(app)
PATHS = [path for path, _ in commands(app)]


def examples(path: str) -> list[str]:
    command = dict(commands(app))[path]
    return re.findall(r"Example: (hplm .*)", command.epilog or "")


@pytest.mark.parametrize("path", PATHS)
def test_every_command_has_examples_that_can_be_typed(path: str) -> None:
    assert examples(path)
    for example in examples(path):
        words = shlex.split(example)[1:]
        command = COMMAND
        context = None
        while isinstance(command, click.Group) or hasattr(command, "commands"):
            context = click.Context(command, parent=context)
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        command.make_context(path, words, parent=context)


def test_every_command_is_in_a_group() -> None:
    everything = [*app.registered_commands, *app.registered_groups]
    assert {one.rich_help_panel for one in everything} == {"Build", "Serve", "Versions", "Access", "Measure"}


def test_the_version(run_hplm: Callable[..., str]) -> None:
    assert re.fullmatch(r"hplm \d+\.\d+\.\d+\n", run_hplm("--version"))

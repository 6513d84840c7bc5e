"""Dataclasses of options become options, and come back as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from cli.option_groups import grouped


@dataclass(frozen=True)
class Point:
    x: Annotated[int, typer.Option("--x", help="First.")]
    y: Annotated[int, typer.Option("--y", "--height", help="Second.")] = 7


def draw(context: typer.Context, *, colour: str = "red", point: Point) -> None:
    """Draw a point."""
    typer.echo(f"{context.info_name} {colour} {point}")


def invoke(*arguments: str) -> str:
    app = typer.Typer()
    app.command("draw")(grouped(draw))
    return CliRunner().invoke(app, arguments).output


def test_fields_are_options() -> None:
    assert invoke("--x", "3").strip() == "draw red Point(x=3, y=7)"
    assert invoke("--x", "3", "--height", "4", "--colour", "blue").strip() == "draw blue Point(x=3, y=4)"


def test_a_field_without_default_is_required() -> None:
    assert "Missing option '--x'" in invoke()


def test_help_is_that_of_the_command_and_its_fields() -> None:
    text = invoke("--help")
    for part in ("Draw a point.", "First.", "Second.", "--height"):
        assert part in text

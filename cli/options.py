"""Options and output that several commands share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from backends.home import HOME_VARIABLE

HomeOption = Annotated[
    Path, typer.Option("--home", envvar=HOME_VARIABLE, help="The folder that everything of one installation lies in.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
RootOption = Annotated[str | None, typer.Option("--root", help="Which root; not needed while there is only one.")]
CorpusOption = Annotated[list[Path], typer.Option("--corpus", help="A text file, one text per line; may be repeated.")]
ThetaOption = Annotated[float, typer.Option(help="Share of the distinct fragments to keep, most frequent first.")]
MaxFragmentsOption = Annotated[int | None, typer.Option(help="Keep at most this many fragments.")]
DEFAULT_HOME = Path("hplm_home")


def print_json(content: object) -> None:
    Console(soft_wrap=True).print_json(json.dumps(content, ensure_ascii=False))


def print_rows(rows: Sequence[Mapping[str, Any]], title: str, as_json: bool) -> None:
    """One row per object; tables show the same keys that `--json` gives."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        Console().print(Text(f"no {title}"))
        return
    table = Table(*rows[0], title=Text(title))
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    Console().print(table)


def print_entry(entry: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(entry)
        return
    table = Table(show_header=False)
    for name, value in entry.items():
        table.add_row(Text(name), _shown(value))
    Console().print(table)


def _shown(value: object) -> Text:
    """A table's cell; `Text`, because a plain string would be read as markup."""
    return Text(_as_text(value))


def _as_text(value: object) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_as_text(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(part) for part in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

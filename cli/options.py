"""Options and output that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from backends.errors import InvalidArgumentError, shown
from backends.home import HOME_VARIABLE
from backends.traffic.settings import RECORD_VARIABLE
from cli.streams import is_unicode

HomeOption = Annotated[
    Path, typer.Option("--home", envvar=HOME_VARIABLE, help="The folder that everything of one installation lies in.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
RootOption = Annotated[str | None, typer.Option("--root", help="Which root; not needed while there is only one.")]
CorpusOption = Annotated[list[Path], typer.Option("--corpus", help="A text file, one text per line; may be repeated.")]
MaxFragmentsOption = Annotated[int | None, typer.Option(help="Keep at most this many fragments.")]
DeviceOption = Annotated[
    str,
    typer.Option("--device", help="Where to train: auto (a GPU where there is one), cpu, cuda or cuda:N."),
]
RecordTrafficOption = Annotated[
    bool | None,
    typer.Option(
        "--record-traffic/--no-record-traffic",
        envvar=RECORD_VARIABLE,
        help="For this run: record who asks what when, never a text; without it as exported, not.",
    ),
]
DEFAULT_HOME = Path("hplm_home")
_MANY_ROWS = 200
_ANY_WIDTH = 100_000
_MANY_CHARACTERS = 100_000


def read_span_s(text: str, option: str, bare_unit: str = "s") -> float:
    """Read a time that may be 0: 0, 500ms, 30s, 5m, 24h, or a number in the bare unit."""
    from workload.errors import WorkloadError
    from workload.forms import read_duration_s

    if text.startswith("0") and text.strip("0.") in ("", "s", "ms", "m", "h"):
        return 0.0
    try:
        return read_duration_s(text, option, bare_unit)
    except WorkloadError as error:
        raise InvalidArgumentError(f"{option}: {shown(text)} is no time such as 500ms, 30s, 5m, 24h or 0") from error


def read_deadline_ms(text: str) -> int:
    """Read a deadline of at least a millisecond: 300ms, 2s, or a number of milliseconds."""
    from workload.forms import read_duration_s

    milliseconds = round(1000 * read_duration_s(text, "--deadline", "ms"))
    if milliseconds < 1:
        raise InvalidArgumentError(f"--deadline: {text!r} is less than a millisecond")
    return milliseconds


def print_json(content: object) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=not is_unicode(sys.stdout))
    if sys.stdout.isatty() and len(text) < _MANY_CHARACTERS:
        Console(soft_wrap=True).print_json(text)
    else:
        typer.echo(text)


def print_rows(rows: Sequence[Mapping[str, Any]], title: str, as_json: bool) -> None:
    """One row per object, with the same keys that `--json` gives: a table on a terminal, columns of TABs in a pipe."""
    if as_json:
        print_json(rows)
        return
    if not sys.stdout.isatty():
        _print_tabs(
            [list(rows[0]), *([_as_plain_text(value) for value in row.values()] for row in rows)] if rows else []
        )
        return
    if not rows:
        Console().print(Text(f"no {title}"))
        return
    if len(rows) > _MANY_ROWS:
        _print_plainly(rows)
        typer.echo(f"{len(rows):,} {title}")
        return
    table = Table(title=Text(title))
    for name in rows[0]:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    console = Console()
    if console.measure(table, options=console.options.update(width=_ANY_WIDTH)).maximum > console.width:
        _print_plainly(rows)  # folded cells cannot be copied
    else:
        console.print(table)


def _print_tabs(lines: Sequence[Sequence[str]]) -> None:
    """Columns that `cut`, `sort` and `awk` can read: no boxes, no folding, one line a row."""
    for line in lines:
        typer.echo("\t".join(" ".join(cell.split()) for cell in line))


def _print_plainly(rows: Sequence[Mapping[str, Any]]) -> None:
    """Columns without lines around them: narrower than a table, and one of thousands of rows takes seconds."""
    lines = [list(rows[0]), *([_as_text(value) for value in row.values()] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    typer.echo("\n".join("  ".join(map(set_cell_size, line, widths)).rstrip() for line in lines))


def print_table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> None:
    """Rows of texts: boxes on a terminal, columns separated by TABs in a pipe."""
    if not sys.stdout.isatty():
        _print_tabs([head, *rows] if head else rows)
        return
    table = Table(*head, show_header=bool(head))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def print_entry(entry: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(entry)
        return
    if not sys.stdout.isatty():
        _print_tabs([(name, _as_plain_text(value)) for name, value in entry.items()])
        return
    table = Table(show_header=False)
    for name, value in entry.items():
        table.add_row(Text(name), _shown(value))
    Console().print(table)


def _shown(value: object) -> Text:
    """A table's cell; `Text`, because a plain string would be read as markup."""
    return Text(_as_text(value))


def _as_plain_text(value: object) -> str:
    """A cell for programs: numbers without separators."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_as_plain_text(part)}" for name, part in value.items())
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else _as_text(value)


def _as_text(value: object) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_as_text(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(part) for part in value)
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return str(value)

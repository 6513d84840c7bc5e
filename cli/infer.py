"""The command that asks a running server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from backends.errors import InvalidArgumentError
from cli.exit_codes import UNAVAILABLE
from cli.options import JsonOption, print_json, print_rows, read_deadline_ms


def infer(
    id: Annotated[str, typer.Argument(metavar="ID", help="The hPLM, as tenant/name.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT…",
            help="Texts; without any, or with '-', lines of stdin. A TAB separates the texts of a pair.",
        ),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="The second text of a pair, whose first one is TEXT.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Texts, one per line. Each answer is a line of JSON, in the order of the texts."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="With --file: write the answers there. Given again, the command goes on where it was."),
    ] = None,
    url: Annotated[
        str, typer.Option(envvar="HPLM_URL", help="grpc://host:port or http://host:port; several with commas.")
    ] = "grpc://localhost:8001",
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", "--deadline-ms", help="Reject rather than answer later than this: 300ms, 2s."),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            help="A level of the hPLM: full, early, students, students-1 … "
            "\\[default: its ladder, as far up as a text needs]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a running server."""
    asking = _Asking(id, url, None if deadline is None else read_deadline_ms(deadline), level)
    if file is not None:
        if texts or pair:
            raise InvalidArgumentError("--file goes without texts; a TAB separates the texts of a pair")
        _answer_file(asking, file, out)
        return
    if out is not None:
        raise InvalidArgumentError("--out goes with --file")
    _answer_texts(asking, _wanted(texts), pair, as_json)


class _Asking(NamedTuple):
    """The hPLM and the server that texts are sent to, and how they are to be answered."""

    id: str
    url: str
    deadline_ms: int | None
    level: str | None


def _wanted(texts: list[str] | None) -> list[str]:
    from cli.asking import lines_of

    if texts is None and sys.stdin.isatty():
        raise InvalidArgumentError("give a text, or '-' to read lines from the terminal")
    wanted = lines_of(sys.stdin.buffer) if texts in (None, ["-"]) else texts or []
    if not wanted:
        raise InvalidArgumentError("stdin holds no text")
    return wanted


def _answer_file(asking: _Asking, file: Path, out: Path | None) -> None:
    from cli.answering import FileOfTexts
    from hplm_client import HplmClient

    with HplmClient(asking.url) as client:
        answers = FileOfTexts(client, asking.id, file, asking.deadline_ms, asking.level).answer(out)
    if not (answers.kept or answers.asked or answers.errors):
        raise InvalidArgumentError(f"{file} holds no text")
    if answers.kept and not answers.asked and not answers.errors:
        typer.echo(f"nothing was asked: {out} has all answers", err=True)
    if answers.errors:
        is_one = answers.errors == 1
        what = "1 text was not answered" if is_one else f"{answers.errors:,} texts were not answered"
        where = "its line has an error" if is_one else "their lines have an error"
        may_be_answered = out is not None and answers.exit_code == UNAVAILABLE
        again = ", and the same command asks again" if may_be_answered else ""
        typer.echo(f"{what}; {where}{again}", err=True)
        raise typer.Exit(answers.exit_code)


def _answer_texts(asking: _Asking, texts: list[str], pair: str | None, as_json: bool) -> None:
    """Show the answers; the first error, if there is one, is raised when that is done."""
    from cli.asking import answer_as_json, request_of, shown_answer
    from hplm_client import ClientError, HplmClient

    rows = [request_of(asking.id, text, pair) for text in texts]
    with HplmClient(asking.url) as client:
        outcomes = client.infer_many(rows, on_error="return", deadline_ms=asking.deadline_ms, level=asking.level)
    answered = [(text, one) for text, one in zip(texts, outcomes, strict=True) if not isinstance(one, ClientError)]
    errors = [(number, one) for number, one in enumerate(outcomes, start=1) if isinstance(one, ClientError)]
    if as_json:
        print_json([answer_as_json(outcome) for outcome in outcomes])
    elif answered:
        print_rows([shown_answer(text, answer) for text, answer in answered], asking.id, as_json)
    if not errors:
        return
    first, error = errors[0]
    if len(outcomes) > 1:
        typer.echo(f"{len(errors)} of {len(outcomes)} texts were not answered, number {first} as the first", err=True)
    raise error

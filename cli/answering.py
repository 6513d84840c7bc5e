"""Answers to many texts as lines of JSON, in the order of the texts, so that an interrupted command can go on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import typer

from backends.errors import InvalidArgumentError
from cli.asking import answer_as_json, decoded, request_of
from hplm_client import ClientError, HplmClient

_TEXTS_AT_ONCE = 256


def answer_lines(
    client: HplmClient, hplm: str, texts: Path, out: Path | None, deadline_ms: int | None, level: str | None
) -> int:
    """Answer each line of a file and write one line of JSON for it; return the number of errors.

    A file of answers that is there already is gone on with: it has a line per text, and a last line that was cut short
    is written again.
    """
    num_errors = 0
    with texts.open("rb") as lines, _appending(out) as (done, file):
        for _ in islice(lines, done):
            pass
        for batch in _batches(lines):
            wanted = [decoded(line, texts.name, number) for number, line in enumerate(batch, done + 1)]
            asked = [request_of(hplm, text, None) for text in wanted if isinstance(text, str)]
            answered = iter(client.infer_many(asked, on_error="return", deadline_ms=deadline_ms, level=level))
            for line, text in zip(batch, wanted, strict=True):
                outcome = next(answered) if isinstance(text, str) else text
                num_errors += isinstance(outcome, ClientError)
                content: dict[str, Any] = {"text": _shown(line), **answer_as_json(outcome)}
                file.write(json.dumps(content, ensure_ascii=False) + "\n")
            file.flush()
            done += len(wanted)
            if sys.stderr.isatty():
                typer.echo(f"\r{done:,} texts, {num_errors:,} errors", nl=False, err=True)
    if sys.stderr.isatty():
        typer.echo(err=True)
    return num_errors


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode(errors="replace")


@contextmanager
def _appending(out: Path | None) -> Iterator[tuple[int, IO[str]]]:
    """Open the file of answers behind its last whole line; yields how many lines it has."""
    if out is None:
        yield 0, sys.stdout
        return
    content = out.read_bytes() if out.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole and not whole.startswith(b'{"text"'):
        raise InvalidArgumentError(f"{out} holds no answers of 'hplm infer'; name another file")
    with out.open("a", encoding="utf-8") as file:
        os.truncate(out, len(whole))
        yield whole.count(b"\n"), file


def _batches(lines: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    rest = iter(lines)
    while batch := list(islice(rest, _TEXTS_AT_ONCE)):
        yield batch

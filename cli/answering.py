"""Answers to many texts as lines of JSON, in the order of the texts, so that an interrupted command can go on."""

from __future__ import annotations

import json
import os
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import typer

from backends.errors import InvalidArgumentError
from cli.asking import answer_as_json, decoded, request_of
from cli.exit_codes import FAILED, UNAVAILABLE
from cli.failures import described
from hplm_client import ClientError, HplmClient

_TEXTS_AT_ONCE = 256


@dataclass
class Answers:
    """What became of the texts of a file; `kept` were answered by an earlier command."""

    kept: int = 0
    asked: int = 0
    errors: int = 0
    exit_codes: set[int] = field(default_factory=set)

    @property
    def exit_code(self) -> int:
        """The one of the errors; where some may go away, that of these."""
        return UNAVAILABLE if UNAVAILABLE in self.exit_codes else min(self.exit_codes, default=0)

    def note(self, outcome: object) -> None:
        self.asked += 1
        if isinstance(outcome, ClientError):
            failure = described(outcome)
            self.errors += 1
            self.exit_codes.add(FAILED if failure is None else failure.exit_code)


@dataclass(frozen=True)
class FileOfTexts:
    """Texts that an hPLM answers, a line each."""

    client: HplmClient
    hplm: str
    path: Path
    deadline_ms: int | None
    level: str | None

    def answer(self, out: Path | None) -> Answers:
        """Answer each line, and write one line of JSON for it.

        A file of answers that is there already is gone on with: its errors are asked again, and a last line that was
        cut short is written again.

        Raises:
            InvalidArgumentError: That file has other answers.
        """
        answers = Answers()
        if out is None:
            self._append(sys.stdout, answers)
        else:
            whole_bytes, has_errors = self._look_at(out, answers)
            if has_errors:
                whole_bytes = self._ask_again(out, answers)
            with out.open("a", encoding="utf-8") as file:
                os.truncate(out, whole_bytes)
                self._append(file, answers)
        if sys.stderr.isatty():
            typer.echo(err=True)
        return answers

    def _append(self, file: IO[str], answers: Answers) -> None:
        """Ask for the texts behind those that were answered."""
        with self._lines() as lines:
            first = answers.kept + answers.asked + 1
            for batch in _batches(islice(lines, first - 1, None)):
                numbered = list(enumerate(batch, first))
                file.writelines(self._answered(numbered, answers))
                file.flush()
                first += len(batch)

    def _ask_again(self, out: Path, answers: Answers) -> int:
        """Ask anew for what has an error in a file of answers, and replace it; returns its size."""
        beside = out.with_name(f".{out.name}.new")
        try:
            with self._lines() as lines, out.open("rb") as old, beside.open("w", encoding="utf-8") as file:
                numbered = enumerate(zip(lines, _whole(old), strict=False), 1)
                while batch := list(islice(numbered, _TEXTS_AT_ONCE)):
                    wanted = [(number, text) for number, (text, kept) in batch if _has_error(kept)]
                    anew = iter(self._answered(wanted, answers))
                    file.writelines(next(anew) if _has_error(kept) else kept.decode() for _, (_, kept) in batch)
            beside.replace(out)
        finally:
            beside.unlink(missing_ok=True)
        return out.stat().st_size

    def _answered(self, numbered: Sequence[tuple[int, bytes]], answers: Answers) -> list[str]:
        wanted = [decoded(line, self.path.name, number) for number, line in numbered]
        asked = [request_of(self.hplm, text, None) for text in wanted if isinstance(text, str)]
        answered = iter(
            self.client.infer_many(asked, on_error="return", deadline_ms=self.deadline_ms, level=self.level)
        )
        written = []
        for (_, line), text in zip(numbered, wanted, strict=True):
            outcome = next(answered) if isinstance(text, str) else text
            answers.note(outcome)
            content: dict[str, Any] = {"text": _shown(line), **answer_as_json(outcome)}
            written.append(json.dumps(content, ensure_ascii=False) + "\n")
        if sys.stderr.isatty():
            typer.echo(f"\r{answers.kept + answers.asked:,} texts, {answers.errors:,} errors", nl=False, err=True)
        return written

    def _look_at(self, out: Path, answers: Answers) -> tuple[int, bool]:
        """Count what a file has answers to; returns the size of its whole lines, and whether some are errors."""
        size_bytes, has_errors = 0, False
        if not out.exists():
            return 0, False
        with self._lines() as lines, out.open("rb") as old:
            for number, line in enumerate(_whole(old), 1):
                self._require_answer(out, number, line, next(lines, None))
                size_bytes += len(line)
                has_errors |= _has_error(line)
                answers.kept += not _has_error(line)
        return size_bytes, has_errors

    def _require_answer(self, out: Path, number: int, line: bytes, text: bytes | None) -> None:
        content = _content(line)
        if "text" not in content:
            raise InvalidArgumentError(f"{out} holds no answers of 'hplm infer'; name another file")
        if text is None or content["text"] != _shown(text):
            raise InvalidArgumentError(f"line {number} of {out} answers another text; name another file")
        if content.get("hplm", self.hplm) != self.hplm:
            raise InvalidArgumentError(f"line {number} of {out} is of {content['hplm']}; name another file")

    @contextmanager
    def _lines(self) -> Iterator[Iterator[bytes]]:
        with self.path.open("rb") as file:
            first = file.readline().removeprefix(BOM_UTF8)
            yield chain([first], file) if first else iter(file)


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode(errors="replace")


def _whole(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Leave out a line that was cut short."""
    return (line for line in lines if line.endswith(b"\n"))


def _content(line: bytes) -> dict[str, Any]:
    """Read a line of answers; one that is none has nothing."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _has_error(line: bytes) -> bool:
    return "error" in _content(line)


def _batches(lines: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    rest = iter(lines)
    while batch := list(islice(rest, _TEXTS_AT_ONCE)):
        yield batch

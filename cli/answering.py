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
from shutil import copymode
from typing import IO, Any

import typer

from backends.errors import InvalidArgumentError
from cli.asking import answer_as_json, decoded, request_of
from cli.exit_codes import FAILED, UNAVAILABLE, USAGE
from cli.failures import described
from hplm_client import ClientError, HplmClient, InvalidRequestError

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


@dataclass
class _Kept:
    """The whole lines of a file of answers: their size, and of each whether it is to be asked again."""

    whole_bytes: int = 0
    is_open: bytearray = field(default_factory=bytearray)

    def note(self, size_bytes: int, is_open: bool) -> None:
        self.whole_bytes += size_bytes
        self.is_open.append(is_open)


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

        A file of answers that is there already is gone on with: its errors are asked again, unless the text is wrong,
        and a last line that was cut short is written again.

        Raises:
            InvalidArgumentError: That file has other answers.
        """
        answers = Answers()
        if out is None:
            self._append(sys.stdout, 0, answers)
        else:
            kept = self._look_at(out, answers)
            if any(kept.is_open):
                kept.whole_bytes = self._ask_again(out.resolve(), kept.is_open, answers)
            with out.open("a", encoding="utf-8") as file:
                os.truncate(out, kept.whole_bytes)
                self._append(file, len(kept.is_open), answers)
        if sys.stderr.isatty():
            typer.echo(err=True)
        return answers

    def _append(self, file: IO[str], done: int, answers: Answers) -> None:
        """Ask for the texts behind those that have a line."""
        with self._lines() as lines:
            for batch in _batches(islice(lines, done, None)):
                file.writelines(self._answered(list(enumerate(batch, done + 1)), answers))
                file.flush()
                done += len(batch)

    def _ask_again(self, out: Path, is_open: Sequence[int], answers: Answers) -> int:
        """Ask anew for some lines of a file of answers, and replace it, if interrupted with what there is by then.

        Returns its size.
        """
        beside = out.with_name(f".{out.name}.new")
        try:
            with self._lines() as lines, out.open("rb") as old, beside.open("w", encoding="utf-8") as file:
                copymode(out, beside)
                numbered = enumerate(zip(lines, _whole(old), is_open, strict=False), 1)
                batch: list[tuple[int, tuple[bytes, bytes, int]]] = []
                try:
                    while batch := list(islice(numbered, _TEXTS_AT_ONCE)):
                        wanted = [(number, text) for number, (text, _, asks) in batch if asks]
                        anew = iter(self._answered(wanted, answers))
                        file.writelines(next(anew) if asks else line.decode() for _, (_, line, asks) in batch)
                finally:
                    file.writelines(line.decode() for _, (_, line, _) in chain(batch, numbered))
                    file.flush()
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

    def _look_at(self, out: Path, answers: Answers) -> _Kept:
        """Count what a file has answers to."""
        kept = _Kept()
        if not out.exists() or not out.stat().st_size:
            return kept  # the texts may come from a pipe, which can be read once
        if not self.path.is_file():
            raise InvalidArgumentError(f"{out} has answers already, and {self.path} is no file that can be read again")
        with self._lines() as lines, out.open("rb") as old:
            for number, line in enumerate(_whole(old), 1):
                content = _content(line)
                self._require_answer(out, number, content, next(lines, None))
                code = _error_code(content)
                kept.note(len(line), is_open=code not in (None, InvalidRequestError.code))
                answers.kept += code is None
                if code == InvalidRequestError.code:
                    answers.errors += 1
                    answers.exit_codes.add(USAGE)
        return kept

    def _require_answer(self, out: Path, number: int, content: dict[str, Any], text: bytes | None) -> None:
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


def _error_code(content: dict[str, Any]) -> str | None:
    """Return the code of an error that stands in an answer's place; None for an answer."""
    error = content.get("error")
    if error is None:
        return None
    return str(error.get("code")) if isinstance(error, dict) else ""


def _batches(lines: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    rest = iter(lines)
    while batch := list(islice(rest, _TEXTS_AT_ONCE)):
        yield batch

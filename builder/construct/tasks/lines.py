"""The lines of a training file, one at a time, each with its number for the messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from backends.errors import NotFoundError, TrainingDataError

_MAX_LINE_BYTES = 1 << 20


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Every line without its end, blank ones too; text that is not UTF-8 is an error that names file and line."""
    if not path.is_file():
        raise NotFoundError(f"training file {path} does not exist")
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
            if len(line) == _MAX_LINE_BYTES:
                raise TrainingDataError(f"{path}:{number}: longer than {_MAX_LINE_BYTES >> 20} MiB")
            yield number, _decoded(line, f"{path}:{number}").rstrip("\r\n")


def _decoded(line: bytes, where: str) -> str:
    if b"\0" in line:
        raise TrainingDataError(f"{where}: holds a NUL byte; this is no text file")
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TrainingDataError(f"{where}: not UTF-8 at byte {error.start}") from error

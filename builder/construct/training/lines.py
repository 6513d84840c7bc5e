"""The lines of a text file, one at a time, each with its number for the messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from backends.errors import NotFoundError, TrainingDataError

_MAX_LINE_BYTES = 1 << 20


def numbered_lines(
    path: Path, what: str = "file of examples", max_bytes: int = _MAX_LINE_BYTES
) -> Iterator[tuple[int, str]]:
    """Read every line without its end, blank ones too; a longer line, or one that is not UTF-8, is an error."""
    require_file(path, what)
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(max_bytes), b""), start=1):
            if len(line) == max_bytes:
                raise TrainingDataError(f"{path}:{number}: longer than {max_bytes >> 20} MiB")
            yield number, _decoded(line, f"{path}:{number}").rstrip("\r\n")


def require_file(path: Path, what: str) -> None:
    if not path.is_file():
        raise NotFoundError(f"{path} is no file" if path.exists() else f"{what} {path} does not exist")


def _decoded(line: bytes, where: str) -> str:
    if b"\0" in line:
        raise TrainingDataError(f"{where}: holds a NUL byte; this is no text file")
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TrainingDataError(f"{where}: not UTF-8 at byte {error.start}") from error

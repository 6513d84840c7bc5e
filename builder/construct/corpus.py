"""Corpora: one text per line, checked while they are read, streamed so that size does not matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from backends.errors import NotFoundError, TrainingDataError
from backends.storage import file_checksum

_MAX_LINE_BYTES = 16 << 20


def corpus_texts(files: Sequence[Path]) -> Iterator[str]:
    """Every non-empty line of the files; a line that is not UTF-8 text is an error that names it."""
    for path in files:
        _require_file(path)
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
                if len(line) == _MAX_LINE_BYTES:
                    raise TrainingDataError(
                        f"{path}:{number}: longer than {_MAX_LINE_BYTES >> 20} MiB; one text per line"
                    )
                if text := _decode(line, path, number).strip():
                    yield text


def text_batches(files: Sequence[Path], size: int, skip: int = 0) -> Iterator[list[str]]:
    """Texts in lists of `size`, after skipping as many as an interrupted run has done."""
    texts = islice(corpus_texts(files), skip, None)
    while batch := list(islice(texts, size)):
        yield batch


def corpus_checksums(files: Sequence[Path]) -> list[str]:
    """Names the exact texts, so that an interrupted build does not go on with others."""
    for path in files:
        _require_file(path)
    return [file_checksum(path) for path in files]


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise NotFoundError(f"corpus {path} does not exist")


def _decode(line: bytes, path: Path, number: int) -> str:
    if b"\0" in line:
        raise TrainingDataError(f"{path}:{number}: holds a NUL byte; a corpus is plain text, one text per line")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TrainingDataError(f"{path}:{number}: not UTF-8 at byte {error.start}") from error

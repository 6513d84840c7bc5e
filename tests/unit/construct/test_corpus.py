from __future__ import annotations

from pathlib import Path

import pytest

from backends.errors import TrainingDataError
from builder.construct.corpus import corpus_texts


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("content", "message"), [(b"ok\na\xff\n", "c.txt:2: not UTF-8"), (b"\0\n", "c.txt:1: .* NUL")])
def test_a_corpus_that_is_not_text(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(TrainingDataError, match=message):
        list(corpus_texts([write(tmp_path / "c.txt", content)]))


def test_a_corpus_line_that_is_too_long_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "c.txt", b"ok\n" + "é ".encode() * (6 << 20))
    with pytest.raises(TrainingDataError, match=r"c\.txt:2: longer than 16 MiB"):
        list(corpus_texts([path]))

from __future__ import annotations

from pathlib import Path

import pytest

from backends.errors import TrainingDataError
from bench.kit.tiny_home import held_out_of
from builder.construct.training.corpus import corpus_texts, split_corpus


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


def test_held_out_texts_are_those_of_small_hashes_however_often_they_stand_there(tmp_path: Path) -> None:
    texts = [f"text {place % 700}" for place in range(20_000)]
    corpus = split_corpus([write(tmp_path / "c.txt", "\n".join(texts).encode())], None)
    assert set(corpus.held_out) == held_out_of(texts)
    assert 2 <= len(corpus.held_out) <= 35
    assert corpus.num_texts == len(list(corpus.texts())) == sum(text not in corpus.held_out for text in texts)


@pytest.mark.parametrize(("before", "after"), [(5_000, 5_001), (5_000, 10_000), (30_000, 40_000), (600, 660)])
def test_a_corpus_that_has_grown_is_measured_on_what_was_never_trained_on(
    tmp_path: Path, before: int, after: int
) -> None:
    """However its lines are shifted."""
    texts = [f"this is text {place}" for place in range(after)]
    small = split_corpus([write(tmp_path / "small.txt", "\n".join(texts[-before:]).encode())], None)
    large = split_corpus([write(tmp_path / "large.txt", "\n".join(texts).encode())], None)
    assert min(400, 0.5 * after / 50) <= len(large.held_out) <= min(400, 2 * after / 50)
    assert not set(small.texts()) & set(large.held_out)


def test_even_one_text_is_held_out_of_the_smallest_corpus(tmp_path: Path) -> None:
    corpus = split_corpus([write(tmp_path / "c.txt", b"one\ntwo\n")], None)
    assert len(corpus.held_out) == 1 == corpus.num_texts

from __future__ import annotations

from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError, NotFoundError, TrainingDataError
from builder.construct.corpus import corpus_texts
from builder.construct.examples import Example, label_set, majority_share, read_examples
from builder.construct.tune import TuneSettings


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_good_lines_and_blank_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"text": "a", "label": "x"}\n\n{"text": "ü", "label": "y", "id": 3}\n')
    assert read_examples(path) == [Example("a", "x"), Example("ü", "y")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a", "label"', "t.jsonl:2: not JSON"),
        ('["a", "x"]', "t.jsonl:2: not an object"),
        ('{"label": "x"}', "t.jsonl:2: 'text' is missing"),
        ('{"text": "a", "label": 3}', "t.jsonl:2: 'label' is missing, empty or not a string"),
        ('{"text": " ", "label": "x"}', "t.jsonl:2: 'text' is missing, empty"),
        ('{"text": "a \\ud83d", "label": "x"}', "t.jsonl:2: 'text' holds half of a surrogate pair"),
        ('{"text": "a", "label": "\\udc00"}', "t.jsonl:2: 'label' holds half of a surrogate pair"),
        ('{"text": "a", "text_pair": "b", "label": "x"}', "t.jsonl:2: has a 'text_pair'; pairs are not supported yet"),
        (b'{"text": "\xff", "label": "x"}', "t.jsonl:2: not UTF-8 at byte 10"),
    ],
)
def test_a_malformed_line_is_named_with_its_file_and_number(tmp_path: Path, line: str | bytes, message: str) -> None:
    raw = line.encode() if isinstance(line, str) else line
    path = write(tmp_path / "t.jsonl", b'{"text": "a", "label": "x"}\n' + raw + b"\n")
    with pytest.raises(TrainingDataError) as caught:
        read_examples(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_file_and_none(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="holds no examples"):
        read_examples(write(tmp_path / "t.jsonl", "\n\n"))
    with pytest.raises(NotFoundError, match=r"gone\.jsonl does not exist"):
        read_examples(tmp_path / "gone.jsonl")


def test_labels_must_suit_a_classifier() -> None:
    one, two = [Example("a", "x")], [Example("a", "x"), Example("b", "y")]
    assert label_set(two, one, Path("train"), Path("dev")) == ("x", "y")
    with pytest.raises(TrainingDataError, match="one class only"):
        label_set(one, one, Path("train"), Path("dev"))
    with pytest.raises(TrainingDataError, match="dev has label 'z', which train lacks"):
        label_set(two, [Example("c", "z")], Path("train"), Path("dev"))
    assert majority_share([*two, *one]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("content", "message"), [(b"ok\na\xff\n", "c.txt:2: not UTF-8"), (b"\0\n", "c.txt:1: .* NUL")])
def test_a_corpus_that_is_not_text(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(TrainingDataError, match=message):
        list(corpus_texts([write(tmp_path / "c.txt", content)]))


def test_a_corpus_line_that_is_too_long_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "c.txt", "ok\n" + "é " * (6 << 20))
    with pytest.raises(TrainingDataError, match=r"c\.txt:2: longer than 16 MiB"):
        list(corpus_texts([path]))


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", b'\xef\xbb\xbf{"text": "a", "label": "x"}\n')
    assert read_examples(path) == [Example("a", "x")]


def test_a_line_of_endless_brackets_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match=r"t\.jsonl:1: not JSON"):
        read_examples(write(tmp_path / "t.jsonl", "[" * 100_000))


@pytest.mark.parametrize("settings", [{"learning_rate": float("nan")}, {"learning_rate": float("inf")}, {"seed": -1}])
def test_tuning_with_impossible_numbers_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        TuneSettings(**settings)  # type: ignore[arg-type]

"""Training files: what is read from good ones, and what is said of bad ones."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from backends.engine.entities import Span
from backends.errors import InvalidArgumentError, NotFoundError, TrainingDataError
from builder.construct.tasks.conll import is_conll, read_sentences
from builder.construct.tasks.dataset import TaskFiles, read_task
from builder.construct.tasks.examples import LabelledText, TaggedSentence, majority_share, num_shared
from builder.construct.tasks.jsonl import read_classes, read_values

Read = Callable[[Path], Sequence[object]]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(path: Path, *rows: dict[str, object]) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_good_lines_and_blank_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"text": "a", "label": "x"}\n\n{"text": "ü", "label": "y", "id": 3}\r\n')
    assert read_classes(path) == [LabelledText("a", "x"), LabelledText("ü", "y")]
    path = write(tmp_path / "t.jsonl", '{"text": "a", "label": 2}\n{"text": "b", "label": -0.5}')
    assert read_values(path) == [LabelledText("a", 2.0), LabelledText("b", -0.5)]


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", b'\xef\xbb\xbf{"text": "a", "label": "x"}\n')
    assert read_classes(path) == [LabelledText("a", "x")]


def test_pairs_have_no_tab_inside(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", {"text": "a\tb", "text_pair": "c\td", "label": "x"})
    assert read_classes(path) == [LabelledText("a b", "x", "c d")]
    path = jsonl(tmp_path / "t.jsonl", {"text": "a\tb", "label": "x"})
    assert read_classes(path) == [LabelledText("a\tb", "x")]


@pytest.mark.parametrize(
    ("read", "line", "message"),
    [
        (read_classes, '{"text": "a", "label"', ":2: not JSON"),
        (read_classes, "[" * 100_000, ":2: not JSON"),
        (read_classes, '["a", "x"]', ":2: not an object"),
        (read_classes, '{"label": "x"}', ":2: 'text' is missing"),
        (read_classes, '{"text": "a", "label": 3}', ":2: 'label' is the number 3; a class is a string"),
        (read_classes, '{"text": "a", "label": true}', ":2: 'label' is missing, empty or not a string"),
        (read_classes, '{"text": " ", "label": "x"}', ":2: 'text' is missing, empty"),
        (read_classes, '{"text": "a \\ud83d", "label": "x"}', ":2: 'text' holds a lone surrogate"),
        (read_classes, '{"text": "a", "label": "\\udc00"}', ":2: 'label' holds a lone surrogate"),
        (read_classes, '{"text": "a", "text_pair": "b", "label": "x"}', ":2: has a 'text_pair', but line 1 has none"),
        (read_classes, '{"text": "a", "text_pair": " ", "label": "x"}', ":2: 'text_pair' is missing, empty"),
        (read_classes, b'{"text": "\xff", "label": "x"}', ":2: not UTF-8 at byte 10"),
        (read_classes, b"\0" * 20, ":2: holds a NUL byte"),
        (read_classes, '{"text": "' + "a" * (1 << 20), ":2: longer than 1 MiB"),
        (read_values, '{"text": "a", "label": "3.5"}', ":2: 'label' must be a number for regression, not \"3.5\""),
        (read_values, '{"text": "a", "label": true}', ":2: 'label' must be a number for regression, not true"),
        (read_values, '{"text": "a"}', ":2: 'label' must be a number for regression, not null"),
        (read_values, '{"text": "a", "label": NaN}', ":2: 'label' is nan, which is no number"),
        (read_values, '{"text": "a", "label": 1' + "0" * 400 + "}", ":2: 'label' is 1000"),
        (read_values, '{"text": "a", "label": 1e999}', ":2: 'label' is inf"),
        (read_values, '{"text": "a", "label": 1e300}', ":2: 'label' is 1e+300"),
        (read_sentences, "word", ":2: not token<TAB>tag"),
        (read_sentences, "word B-X", ":2: not token<TAB>tag"),
        (read_sentences, "\tO", ":2: not token<TAB>tag"),
        (read_sentences, "a\tb\tO", ":2: not token<TAB>tag"),
        (read_sentences, "word\tX", ":2: tag 'X' is none of O, B-… and I-…"),
        (read_sentences, "word\tB-", ":2: tag 'B-' is none of O"),
        (read_sentences, "word\to", ":2: tag 'o' is none of O"),
        (read_sentences, "word\tI-X", ":2: I-X after O breaks BIO; an entity begins with B-X"),
        (read_sentences, b"w\xff\tO", ":2: not UTF-8 at byte 1"),
    ],
)
def test_a_malformed_line_is_named_with_its_file_and_number(
    tmp_path: Path, read: Read, line: str | bytes, message: str
) -> None:
    raw = line.encode() if isinstance(line, str) else line
    firsts = {
        read_classes: b'{"text": "a", "label": "x"}',
        read_values: b'{"text": "a", "label": 1}',
        read_sentences: b"a\tO",
    }
    path = write(tmp_path / "t.x", firsts[read] + b"\n" + raw + b"\n")
    with pytest.raises(TrainingDataError) as caught:
        read(path)
    assert f"{path}{message}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("read", [read_classes, read_values, read_sentences])
def test_an_empty_file_and_none(tmp_path: Path, read: Read) -> None:
    with pytest.raises(TrainingDataError, match="holds no examples"):
        read(write(tmp_path / "t.x", "\n\n"))
    with pytest.raises(NotFoundError, match=r"gone\.x does not exist"):
        read(tmp_path / "gone.x")


def test_sentences_of_which_nothing_can_be_seen(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match=r"t\.x holds no word that can be seen"):
        read_sentences(write(tmp_path / "t.x", "\u200b\tB-X\n\n\u200b\tO\n"))


def test_tagged_sentences(tmp_path: Path) -> None:
    path = write(tmp_path / "t.conll", "\n\nNew York\tB-GPE\n,\tO\nAda\tB-PER\nL\tI-PER\nBob\tB-PER\n \nx\tO\n")
    first, second = read_sentences(path)
    assert first == TaggedSentence(("New York", ",", "Ada", "L", "Bob"), ("B-GPE", "O", "B-PER", "I-PER", "B-PER"))
    assert first.text == "New York , Ada L Bob"
    assert first.entities() == {Span(0, 8, "GPE"), Span(11, 16, "PER"), Span(17, 20, "PER")}
    assert second.entities() == frozenset()


@pytest.mark.parametrize(
    ("tags", "line", "message"),
    [
        (["I-X"], 1, "I-X at the beginning of a sentence"),
        (["B-X", "I-Y"], 2, "I-Y after B-X"),
        (["B-X", "I-X", "O", "I-X"], 4, "I-X after O"),
        (["B-X", "", "I-X"], 3, "I-X at the beginning of a sentence"),
    ],
)
def test_broken_bio_is_named_with_both_tags(tmp_path: Path, tags: list[str], line: int, message: str) -> None:
    path = write(tmp_path / "t.conll", "".join(f"w\t{tag}\n" if tag else "\n" for tag in tags))
    with pytest.raises(TrainingDataError, match=rf"t\.conll:{line}: {message} breaks BIO"):
        read_sentences(path)


def test_random_sentences_come_back(tmp_path: Path) -> None:
    chance = random.Random(3)
    sentences = []
    for _ in range(40):
        words, tags = [], []
        for _ in range(chance.randint(1, 6)):
            kind, length = chance.choice(["O", "A", "B-C"]), chance.randint(1, 3)
            for place in range(length):
                words.append("".join(chance.choices("aé漢🙂.-", k=chance.randint(1, 4))))
                tags.append("O" if kind == "O" else f"{'I' if place else 'B'}-{kind}")
        sentences.append(TaggedSentence(tuple(words), tuple(tags)))
    lines = ["".join(f"{w}\t{t}\n" for w, t in zip(each.words, each.tags, strict=True)) for each in sentences]
    assert read_sentences(write(tmp_path / "t.conll", "\n".join(lines))) == sentences
    for sentence in sentences:
        assert [sentence.text[start:end] for start, end in sentence.word_spans()] == list(sentence.words)


def test_the_kind_of_a_file_is_seen(tmp_path: Path) -> None:
    assert is_conll(write(tmp_path / "t", "\nword\tB-X\n"))
    assert not is_conll(write(tmp_path / "t", '{"text": "a\tO", "label": "x"}'))
    assert not is_conll(write(tmp_path / "t", ""))
    assert not is_conll(write(tmp_path / "t", " \tO\n"))


@pytest.mark.parametrize("line", ["x" * ((1 << 20) - 2), "x " * ((1 << 19) - 1), "a\tB-" + "x " * ((1 << 19) - 4)])
def test_a_long_line_is_looked_at_once(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "t", line + "\n")
    started_s = time.process_time()
    assert not is_conll(path)
    assert time.process_time() - started_s < 1  # minutes where each beginning of the line is tried


def test_classes_of_both_files(tmp_path: Path) -> None:
    x, y, z = ({"text": name, "label": name} for name in "xyz")
    both, one, other = jsonl(tmp_path / "both", y, x), jsonl(tmp_path / "one", x, x), jsonl(tmp_path / "other", z)
    assert read_task(TaskFiles(both, one)).labels == ("x", "y")
    with pytest.raises(TrainingDataError, match=r"one holds one class only \('x'\)"):
        read_task(TaskFiles(one, one))
    with pytest.raises(TrainingDataError, match=r"other has label 'z', which .*both lacks"):
        read_task(TaskFiles(both, other))
    assert read_task(TaskFiles(both, one, other)).test  # a label that nobody trained only counts as wrong
    assert majority_share([LabelledText("a", "x"), LabelledText("b", "y"), LabelledText("c", "x")]) == 2 / 3


def test_entities_of_both_files(tmp_path: Path) -> None:
    some, none, other = (
        write(tmp_path / name, content)
        for name, content in (("some", "a\tB-Y\nb\tO\n\nc\tB-X\nd\tI-X\n"), ("none", "a\tO\n"), ("other", "a\tB-Z\n"))
    )
    data = read_task(TaskFiles(some, none))
    assert (data.task, data.labels, data.pair) == ("ner", ("O", "B-X", "I-X", "B-Y", "I-Y"), False)
    with pytest.raises(TrainingDataError, match="none holds no entity"):
        read_task(TaskFiles(none, some))
    with pytest.raises(TrainingDataError, match=r"other has entities 'Z', which .*some lacks"):
        read_task(TaskFiles(some, other))
    with pytest.raises(
        TrainingDataError, match="looks like token<TAB>tag lines, as for the task ner, not classification"
    ):
        read_task(TaskFiles(some, some), "classification")


def test_numbers_must_differ(tmp_path: Path) -> None:
    good = jsonl(tmp_path / "good", {"text": "a", "label": 1}, {"text": "b", "label": 2})
    flat = jsonl(tmp_path / "flat", {"text": "a", "label": 1}, {"text": "b", "label": 1.0})
    assert read_task(TaskFiles(good, good), "regression").labels == ()
    for files in (TaskFiles(flat, good), TaskFiles(good, flat)):
        with pytest.raises(TrainingDataError, match=r"flat: every label is 1\.0"):
            read_task(files, "regression")
    with pytest.raises(InvalidArgumentError, match="task 'translation' is not one of"):
        read_task(TaskFiles(good, good), "translation")


def test_files_of_different_kinds(tmp_path: Path) -> None:
    single = jsonl(tmp_path / "single", {"text": "a", "label": "x"}, {"text": "b", "label": "y"})
    pairs = jsonl(tmp_path / "pairs", *({"text": "a", "text_pair": "b", "label": label} for label in "xy"))
    assert read_task(TaskFiles(pairs, pairs)).pair
    for files, message in (
        (TaskFiles(pairs, single), "single holds single texts, but .*pairs holds pairs of texts"),
        (TaskFiles(single, pairs), "pairs holds pairs of texts, but .*single holds single texts"),
        (TaskFiles(single, single, pairs), "pairs holds pairs of texts"),
    ):
        with pytest.raises(TrainingDataError, match=message):
            read_task(files)


def test_texts_that_are_in_two_files_are_counted(tmp_path: Path) -> None:
    train = [LabelledText("The  Cat", "x"), LabelledText("ﬁne", "y"), LabelledText("a", "x", "b")]
    others = [
        LabelledText("the cat", "y"),
        LabelledText("fine", "y"),
        LabelledText("a", "x"),
        LabelledText("A", "x", "B"),
    ]
    assert num_shared(others, train) == 3
    assert num_shared(train, train) == 3
    assert num_shared([], train) == 0
    path = jsonl(tmp_path / "t", {"text": "A", "label": "x"}, {"text": "b", "label": "y"})
    other = jsonl(tmp_path / "o", {"text": "a ", "label": "x"})
    assert read_task(TaskFiles(path, other, path)).leaks == {"dev_in_train": 1, "test_in_train": 2}

"""Texts without labels become examples of the task's kind, read as a server would read them."""

from pathlib import Path

import pytest

from backends.errors import NotFoundError, TrainingDataError
from builder.construct.tasks.examples import LabelledText, TaggedSentence
from builder.construct.tasks.unlabelled import unlabelled_examples

SINGLE = LabelledText("a text", "good")
PAIR = LabelledText("a text", 2.5, "another")
SENTENCE = TaggedSentence(("a", "text"), ("O", "B-X"))


def written(folder: Path, *lines: str) -> Path:
    path = folder / "texts.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_single_texts(tmp_path: Path) -> None:
    found = unlabelled_examples(written(tmp_path, "one\ttext", "", "two"), SINGLE, [], most=10)
    assert [(each.text, each.text_pair) for each in found] == [("one text", None), ("two", None)]


def test_pairs_stand_apart_by_their_first_tab(tmp_path: Path) -> None:
    found = unlabelled_examples(written(tmp_path, "one\ttwo\tthree", "four\tfive"), PAIR, [], most=10)
    assert [(each.text, each.text_pair) for each in found] == [("one", "two three"), ("four", "five")]
    with pytest.raises(TrainingDataError, match=r"texts\.txt has 'alone'; a task of pairs needs a TAB"):
        unlabelled_examples(written(tmp_path, "alone"), PAIR, [], most=10)


def test_sentences_are_cut_into_words(tmp_path: Path) -> None:
    (found,) = unlabelled_examples(written(tmp_path, "Il-2, over-expressed in Köln (Germany)."), SENTENCE, [], most=10)
    assert isinstance(found, TaggedSentence)
    assert found.words == ("Il", "-", "2", ",", "over", "-", "expressed", "in", "Köln", "(", "Germany", ")", ".")
    assert set(found.tags) == {"O"}


def test_what_is_known_or_was_there_before_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "One text", "one  TEXT", "Known text", "another")
    found = unlabelled_examples(path, SINGLE, [LabelledText("known text", "bad")], most=10)
    assert [each.text for each in found] == ["One text", "another"]
    with pytest.raises(TrainingDataError, match="holds no text that"):
        unlabelled_examples(
            path, SINGLE, [LabelledText(text, "bad") for text in ("one text", "known text", "another")], 9
        )


def test_no_more_than_asked_for_from_all_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, *(f"text {place}" for place in range(1000)))
    numbers = [int(each.text.split()[1]) for each in unlabelled_examples(path, SINGLE, [], most=90)]
    assert 45 <= len(numbers) <= 90
    assert min(numbers) < 20 and max(numbers) > 980


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nowhere\.txt"):
        unlabelled_examples(tmp_path / "nowhere.txt", SINGLE, [], most=9)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TrainingDataError, match=r"binary\.txt:1"):
        unlabelled_examples(tmp_path / "binary.txt", SINGLE, [], most=9)

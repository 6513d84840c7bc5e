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
    with pytest.raises(TrainingDataError, match=r"texts\.txt:2: one text; a task of pairs needs two"):
        unlabelled_examples(written(tmp_path, "one\ttwo", "alone\t"), PAIR, [], most=10)


def test_sentences_are_cut_into_words(tmp_path: Path) -> None:
    (found,) = unlabelled_examples(written(tmp_path, "Il-2, over-expressed in Köln (Germany)."), SENTENCE, [], most=10)
    assert isinstance(found, TaggedSentence)
    assert found.words == ("Il", "-", "2", ",", "over", "-", "expressed", "in", "Köln", "(", "Germany", ")", ".")
    assert set(found.tags) == {"O"}


def test_a_known_sentence_is_known_however_it_was_cut(tmp_path: Path) -> None:
    path = written(tmp_path, "The U.S. isn't in 3-beta shape.", "Another one.")
    known = TaggedSentence(("The", "U.S.", "is", "n't", "in", "3-beta", "shape", "."), ("O",) * 8)
    (found,) = unlabelled_examples(path, SENTENCE, [known], most=10)
    assert found.words == ("Another", "one", ".")


def test_what_is_known_or_was_there_before_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, "One text", "one  TEXT", "Known text", "another")
    found = unlabelled_examples(path, SINGLE, [LabelledText("known text", "bad")], most=10)
    assert [each.text for each in found] == ["One text", "another"]
    with pytest.raises(TrainingDataError, match="holds no text that"):
        unlabelled_examples(
            path, SINGLE, [LabelledText(text, "bad") for text in ("one text", "known text", "another")], 9
        )


@pytest.mark.parametrize("lines", [90, 91, 181, 1000])
def test_as_many_as_asked_for_from_all_over_the_file(tmp_path: Path, lines: int) -> None:
    known = [LabelledText(f"known {place}", "bad") for place in range(lines)]
    path = written(tmp_path, *(line for place in range(lines) for line in (f"known {place}", f"text {place}")))
    found = unlabelled_examples(path, SINGLE, known, most=90)
    numbers = [int(each.text.split()[1]) for each in found]
    assert len(numbers) == 90
    assert numbers == sorted(set(numbers))
    assert min(numbers) < lines / 10 and max(numbers) > lines * 9 / 10
    assert found == unlabelled_examples(path, SINGLE, known, most=90)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nowhere\.txt"):
        unlabelled_examples(tmp_path / "nowhere.txt", SINGLE, [], most=9)
    with pytest.raises(NotFoundError, match="is no file"):
        unlabelled_examples(tmp_path, SINGLE, [], most=9)
    with pytest.raises(TrainingDataError, match=r"holds no text$"):
        unlabelled_examples(written(tmp_path, "", "  "), SINGLE, [], most=9)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TrainingDataError, match=r"binary\.txt:1"):
        unlabelled_examples(tmp_path / "binary.txt", SINGLE, [], most=9)


@pytest.mark.parametrize(
    ("first", "reason"),
    [("Il-2\tB-PROTEIN", "token<TAB>tag"), ('{"text": "a text", "label": "good"}', "looks like JSONL")],
)
def test_a_file_of_examples_is_not_taken_for_texts(tmp_path: Path, first: str, reason: str) -> None:
    with pytest.raises(TrainingDataError, match=reason):
        unlabelled_examples(written(tmp_path, first, "more"), SENTENCE, [], most=9)


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("first\nsecond\n", encoding="utf-8-sig")
    assert [each.text for each in unlabelled_examples(path, SINGLE, [LabelledText("first", "x")], 9)] == ["second"]

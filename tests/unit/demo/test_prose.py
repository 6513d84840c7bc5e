from __future__ import annotations

import random

import pytest

from demo.prose import Novelty, VerbatimFilter, is_english, lead, paragraphs, passages, plain, shingles, words

WORDS = ["red", "green", "blue", "round", "square", "small", "large", "box", "lid", "key"]


def random_text(rng: random.Random, n_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=n_words))


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("See :class:`~torch.Tensor` and ``None``.", "See torch.Tensor and None."),
        (":ref:`the guide <guide-label>` helps", "the guide helps"),
        ("`site <https://example.org>`__ of\n  the *project*", "site of the *project*"),
        ("got %s, expected {name!r} or %(size)d", "got …, expected … or …"),
        ("Title\n-----\n.. versionadded:: 3.2\ntext::", "Title text:"),
    ],
)
def test_markup_gives_way_to_the_words_inside(markup: str, expected: str) -> None:
    assert plain(markup) == expected


def test_interactive_examples_are_left_out() -> None:
    assert paragraphs("Adds.\n\n>>> add(1, 2)\n3\n\n----\n\nThe end.") == ["Adds.", "The end."]


def test_the_lead_ends_before_the_first_section() -> None:
    text = "Adds two numbers.\n\nSlowly.\n\nParameters\n----------\na : int"
    assert lead(text, 99) == "Adds two numbers. Slowly."
    assert lead(text, 2) == "Adds two"


def test_passages_keep_every_word_in_order_and_obey_the_limit() -> None:
    rng = random.Random(1)
    for _ in range(50):
        sentences = [random_text(rng, rng.randint(1, 30)) + "." for _ in range(rng.randint(1, 12))]
        limit = rng.randint(3, 25)
        cut = list(passages(" ".join(sentences), limit))
        assert " ".join(cut) == " ".join(sentences)
        assert max(len(passage.split()) for passage in cut) <= limit


def test_prose_is_told_from_code() -> None:
    assert is_english("Return the number of items, or None if there are none.")
    assert not is_english("x[i:j] = f(a, b)[0] ** 2 + {1: 3.5}")


def test_the_verbatim_filter_agrees_with_a_plain_search() -> None:
    rng = random.Random(2)
    texts = [random_text(rng, rng.randint(3, 5)) for _ in range(20)]
    matcher = VerbatimFilter(texts)
    lines = [random_text(rng, rng.randint(3, 40)) for _ in range(300)]
    found = [matcher.matches(line.title() + "!") for line in lines]
    assert found == [any(f" {text} " in f" {line} " for text in texts) for line in lines]
    assert any(found)
    assert not all(found)


def test_accepted_texts_share_at_most_half_of_their_shingles() -> None:
    rng = random.Random(3)
    novelty = Novelty()
    texts = [random_text(rng, rng.randint(4, 12)) for _ in range(400)]
    accepted = [text for text in texts if novelty.accept(text)]
    assert 5 < len(accepted) < 400
    for i, later in enumerate(accepted):
        for earlier in accepted[:i]:
            shared = shingles(earlier) & shingles(later)
            assert 2 * len(shared) <= len(shingles(earlier) | shingles(later))


def test_case_digits_and_punctuation_make_no_new_text() -> None:
    novelty = Novelty(["Open the box number 12, please."])
    assert not novelty.is_new("open THE box (number 77) please")
    assert words("Box_7's lid") == ["box", "s", "lid"]

"""From logits to entities, against a search over all sequences of tags."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from backends.engine.entities import ScoredSpan, Span, best_tags, find_entities
from backends.errors import InvalidArgumentError
from backends.root.words import RowWords
from backends.wire import TextWords, decode_words, encode_words

LABELS = ("O", "B-A", "I-A", "B-B-C", "I-B-C")


def is_bio(tags: tuple[str, ...]) -> bool:
    previous = "O"
    for tag in tags:
        if tag.startswith("I-") and previous[2:] != tag[2:]:
            return False
        previous = tag
    return True


@pytest.mark.parametrize("seed", range(20))
def test_the_best_sequence_of_all(seed: int) -> None:
    order = np.random.default_rng(seed)
    num_words = int(order.integers(1, 6))
    scores = torch.log_softmax(torch.from_numpy(order.normal(scale=2, size=(num_words, 5))), dim=-1).float().numpy()
    legal = [tags for tags in product(range(5), repeat=num_words) if is_bio(tuple(LABELS[tag] for tag in tags))]
    best = max(legal, key=lambda tags: sum(scores[word, tag] for word, tag in enumerate(tags)))
    assert best_tags(scores, LABELS).tolist() == list(best)


def words_of(text: str, *spans: tuple[int, int]) -> RowWords:
    starts, ends = (np.array(column, np.int32) for column in zip(*spans, strict=True))
    return RowWords(np.arange(1, len(spans) + 1, dtype=np.int32), starts, ends)


def sure_of(*tags: str) -> torch.Tensor:
    return torch.tensor([[9.0 if label == tag else 0.0 for label in LABELS] for tag in tags])


def found(text: str, words: RowWords, *tags: str) -> list[Span]:
    return [each.span for each in find_entities(sure_of(*tags), words, text, LABELS)]


def test_words_become_spans() -> None:
    text = "Ada Lovelace met Bob"
    words = words_of(text, (0, 3), (4, 12), (13, 16), (17, 20))
    assert found(text, words, "B-A", "I-A", "O", "B-A") == [Span(0, 12, "A"), Span(17, 20, "A")]
    assert found(text, words, "B-A", "B-A", "I-A", "O") == [Span(0, 3, "A"), Span(4, 16, "A")]
    assert found(text, words, "B-A", "B-B-C", "O", "O") == [Span(0, 3, "A"), Span(4, 12, "B-C")]
    assert found(text, words, "O", "O", "O", "O") == []


def test_the_score_is_the_mean_of_the_words() -> None:
    logits = torch.tensor([[0.0, 2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    (entity,) = find_entities(logits, words_of("a b", (0, 1), (2, 3)), "a b", LABELS)
    chances = logits.softmax(dim=-1)
    assert entity == ScoredSpan(Span(0, 3, "A"), pytest.approx(float(chances[0, 1] + chances[1, 2]) / 2))


def test_a_span_has_no_blanks_and_all_marks() -> None:
    text = "le cafe\u0301 ici"
    assert found(text, words_of(text, (2, 7)), "B-A") == [Span(3, 8, "A")]
    assert text[3:8] == "cafe\u0301"


def test_a_row_without_words() -> None:
    nothing = np.empty(0, np.int32)
    assert find_entities(torch.empty(0, 5), RowWords(nothing, nothing, nothing), "\u200b", LABELS) == []


@pytest.mark.parametrize("row", [b"", b"abc", b"\x05\x00\x00\x00" + bytes(8), b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"])
def test_words_that_are_none(row: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="WORDS"):
        decode_words(row)


def test_words_travel() -> None:
    text = "Zoë 🙂 went home\u0301 and whatever is behind the limit"
    words = words_of(text, (0, 3), (4, 5), (6, 10), (11, 15))
    there = decode_words(encode_words(TextWords(text, words)))
    assert there.text == text[:16]
    for name in ("first_tokens", "starts", "ends"):
        assert np.array_equal(getattr(there.words, name), getattr(words, name))
    assert encode_words(None) == b""

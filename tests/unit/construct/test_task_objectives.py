"""What the tasks count: entities that can be found, classes that weigh the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from backends.engine.entities import Span
from backends.root.words import RowWords
from builder.construct.tasks.examples import LabelledText, TaggedSentence
from builder.construct.tasks.ner import Ner
from builder.construct.tasks.objective import balanced_weights, cross_entropy
from builder.construct.tasks.task_objectives import Classification


def test_entities_behind_the_limit_count_as_missed() -> None:
    sentence = TaggedSentence(("a", "3-b", "c", "d"), ("B-X", "B-X", "I-X", "B-X"))
    places = np.arange(5, dtype=np.int32)
    starts, ends = np.array([0, 2, 3, 4, 6], np.int32), np.array([1, 3, 4, 5, 7], np.int32)
    objective = Ner(("O", "B-X", "I-X"), [sentence])
    all_words, two_words = (RowWords(places[:n] + 1, starts[:n], ends[:n]) for n in (5, 4))
    whole, cut = objective.targets([sentence] * 2, [all_words, two_words])
    assert whole.tags.tolist() == [1, 1, 2, 2, 2]  # a token of three words goes on as one entity
    assert cut.tags.tolist() == [1, 1, 2, 2]
    right = [10 * torch.nn.functional.one_hot(row.tags, 3).float() for row in (whole, cut)]
    assert objective.metrics(right, [whole, cut])["recall"] == pytest.approx(3 / 6)


def tagged_words(sentence: TaggedSentence, *spans: tuple[int, int]) -> RowWords:
    starts, ends = (np.array(each, np.int32) for each in zip(*spans, strict=True))
    return RowWords(np.arange(1, len(spans) + 1, dtype=np.int32), starts, ends)


@pytest.mark.parametrize(
    ("tokens", "tags", "spans", "wanted", "entities"),
    [
        (["\u200bBonn", "foo\u00ad"], ["B-X", "O"], [(1, 5), (6, 9)], [1, 0], {Span(1, 5, "X")}),
        (["\u200b", "Bonn", "am"], ["B-X", "I-X", "I-X"], [(2, 6), (7, 9)], [1, 2], {Span(2, 9, "X")}),
        (["a", "\ufeff"], ["B-X", "B-X"], [(0, 1)], [1], {Span(0, 1, "X")}),
        (["a", "\u200b", "b"], ["B-X", "O", "B-X"], [(0, 1), (4, 5)], [1, 1], {Span(0, 1, "X"), Span(4, 5, "X")}),
        (["a", "b"], ["B-X", "I-X"], [(0, 1)], [1], {Span(0, 3, "X")}),  # the second lies behind the limit
    ],
)
def test_entities_are_those_that_can_be_found(
    tokens: list[str], tags: list[str], spans: list[tuple[int, int]], wanted: list[int], entities: set[Span]
) -> None:
    sentence = TaggedSentence(tuple(tokens), tuple(tags))
    objective = Ner(("O", "B-X", "I-X"), [sentence])
    (row,) = objective.targets([sentence], [tagged_words(sentence, *spans)])
    assert row.tags.tolist() == wanted
    assert row.entities == entities


def test_balanced_classes_weigh_the_same() -> None:
    classes = torch.tensor([0] * 90 + [2] * 9 + [3])
    weights = balanced_weights(classes, 5)
    totals = [
        float(weights[classes == each].sum() if each < 0 else weights[each] * (classes == each).sum())
        for each in (0, 2, 3)
    ]
    assert totals == pytest.approx([100 / 3] * 3)
    texts = [LabelledText("a", label) for label in "xxxxy"]
    answers = torch.zeros(5, 2)
    answers[:, 0] = 1.0  # says x always
    plain, balanced = (
        Classification("xy", texts, balanced=each).hard_loss(answers, [0, 0, 0, 0, 1], 0.0) for each in (False, True)
    )
    x, y = -torch.log_softmax(torch.tensor([1.0, 0.0]), dim=0)
    assert float(plain) == pytest.approx(float(4 * x + y) / 5)
    assert float(balanced) == pytest.approx(float(x + y) / 2)


@pytest.mark.parametrize("count", [20, 400])
def test_balanced_classes_with_smoothed_labels_teach_no_row_another_class(count: int) -> None:
    """The best answers to texts of a frequent class are that class, however rare the other is."""
    texts = [LabelledText("a", label) for label in "x" * count + "y"]
    objective, targets = Classification("xy", texts, balanced=True), [0] * count + [1]
    answers = torch.zeros(count + 1, 2, requires_grad=True)
    optimiser = torch.optim.Adam([answers], lr=0.1)
    for _ in range(200):
        optimiser.zero_grad()
        objective.hard_loss(answers, targets, 0.05).backward()
        optimiser.step()
    assert answers.argmax(dim=1).tolist() == targets
    assert torch.softmax(answers[0].detach(), dim=0)[0] > 0.9


def test_a_tag_that_does_not_occur_weighs_no_more_than_the_rarest() -> None:
    """Words within a training token may have it."""
    weights = balanced_weights(torch.tensor([0] * 900 + [1] * 100), 3)
    assert weights[2] == weights[1] == pytest.approx(5.0)


def test_words_of_unknown_tags_count_nothing() -> None:
    answers, weights = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([1.0, 4.0])
    found = cross_entropy(answers, torch.tensor([0, -100]), weights, 0.1)
    assert torch.isfinite(found) and found == cross_entropy(answers[:1], torch.tensor([0]), weights, 0.1)

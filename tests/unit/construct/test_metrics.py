"""The figures of each task against slow, obvious ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from backends.engine.entities import Span
from builder.construct.tasks import metrics


def slow_f1(true: Sequence[object], found: Sequence[object]) -> float:
    """Compute F1 of two lists of distinct things."""
    hits = [thing for thing in found if thing in true]
    if not hits:
        return 0.0
    precision, recall = len(hits) / len(found), len(hits) / len(true)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("seed", range(5))
def test_classes(seed: int) -> None:
    order = np.random.default_rng(seed)
    predicted, true = order.integers(0, 6, 80), order.choice([0, 0, 0, 1, 2], 80)
    pairs = list(enumerate(zip(predicted.tolist(), true.tolist(), strict=True)))
    assert metrics.accuracy(predicted, true) == sum(p == t for _, (p, t) in pairs) / 80
    of_classes = []
    for each in set(predicted.tolist()) | set(true.tolist()):
        rows_true, rows_found = [i for i, (_, t) in pairs if t == each], [i for i, (p, _) in pairs if p == each]
        of_classes.append(slow_f1(rows_true, rows_found))
    assert metrics.macro_f1(predicted, true) == pytest.approx(sum(of_classes) / len(of_classes))


@pytest.mark.parametrize("seed", range(5))
def test_entities(seed: int) -> None:
    chance = random.Random(seed)

    def spans() -> frozenset[Span]:
        return frozenset(
            Span(s := chance.randint(0, 3), s + 1, chance.choice("ab")) for _ in range(chance.randint(0, 3))
        )

    predicted, true = [spans() for _ in range(30)], [spans() for _ in range(30)]
    scores = metrics.entity_scores(predicted, true)
    all_true = [(row, span) for row, of_row in enumerate(true) for span in of_row]
    all_found = [(row, span) for row, of_row in enumerate(predicted) for span in of_row]
    hits = sum(thing in all_true for thing in all_found)
    assert scores["f1"] == pytest.approx(slow_f1(all_true, all_found))
    assert (scores["precision"], scores["recall"]) == (hits / len(all_found), hits / len(all_true))


def test_nothing_found_and_nothing_there() -> None:
    entity = frozenset([Span(0, 1, "a")])
    nothing = {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    assert metrics.entity_scores([frozenset()], [entity]) == nothing
    assert metrics.entity_scores([entity], [frozenset()]) == nothing
    assert metrics.entity_scores([frozenset()], [frozenset()]) == nothing


@pytest.mark.parametrize("seed", range(5))
def test_correlations(seed: int) -> None:
    order = np.random.default_rng(seed)
    one, other = order.normal(size=50), order.integers(0, 9, 50).astype(float)  # with ties
    assert metrics.pearson(one, other) == pytest.approx(np.corrcoef(one, other)[0, 1])

    def slow_ranks(values: np.ndarray) -> list[float]:
        return [float((values < v).sum() + ((values == v).sum() + 1) / 2) for v in values]

    assert metrics.spearman(one, other) == pytest.approx(np.corrcoef(slow_ranks(one), slow_ranks(other))[0, 1])
    assert metrics.spearman(one, np.exp(one)) == pytest.approx(1)
    assert metrics.pearson(one, -3 * one + 2) == pytest.approx(-1)
    assert metrics.pearson(one, np.ones(50)) == 0

"""Differences between two models on the same texts: right where they can be told, wide where they cannot."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from backends.root.words import RowWords
from builder.construct.tasks import metrics
from builder.construct.tasks.examples import LabelledText, TaggedSentence
from builder.construct.tasks.metrics import Floats
from builder.construct.tasks.ner import Ner
from builder.construct.tasks.paired import RESAMPLES, paired_difference, resampled
from builder.construct.tasks.task_objectives import Classification, Regression


def hits(right: int, wrong: int) -> Floats:
    return np.array([[1.0, 1.0]] * right + [[0.0, 1.0]] * wrong)


def test_the_interval_is_that_of_the_texts_on_which_they_differ() -> None:
    """40 of 1,000 texts were wrong before and 20 are now: certain, though 96 % and 98 % of 1,000 texts are not."""
    before, now = hits(960, 40), hits(980, 20)
    difference = paired_difference(now, before, metrics.ratio_of_sums)
    assert difference.value == pytest.approx(0.02)
    error = np.sqrt(0.02 * (1 - 0.02) / 1000)
    assert difference.low == pytest.approx(0.02 - 1.96 * error, abs=0.002)
    assert difference.high == pytest.approx(0.02 + 1.96 * error, abs=0.002)
    assert difference.verdict == "better"
    assert paired_difference(before, now, metrics.ratio_of_sums).verdict == "worse"


def test_as_many_gained_as_lost_is_no_clear_difference() -> None:
    difference = paired_difference(hits(900, 100), hits(900, 100)[::-1].copy(), metrics.ratio_of_sums)
    assert difference.value == 0
    assert difference.low < 0 < difference.high
    assert difference.verdict == "no clear difference"
    assert str(difference).startswith("+0.0000 (95 % between -0.0")


def test_equal_answers_do_not_differ_however_few_the_texts() -> None:
    difference = paired_difference(hits(1, 0), hits(1, 0), metrics.ratio_of_sums)
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)
    assert difference.verdict == "no clear difference"


def test_a_draw_is_of_whole_texts_and_the_same_for_the_same_seed() -> None:
    terms = np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    drawn = resampled(terms, metrics.ratio_of_sums, seed=3)
    assert drawn.shape == (RESAMPLES,)
    assert set(np.round(drawn * 3).astype(int)) == {0, 1, 2, 3}
    assert drawn.tolist() == resampled(terms, metrics.ratio_of_sums, seed=3).tolist()
    assert drawn.tolist() != resampled(terms, metrics.ratio_of_sums, seed=4).tolist()
    assert drawn.mean() == pytest.approx(2 / 3, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_the_score_of_all_rows_is_the_main_metric(seed: int) -> None:
    rng, order = random.Random(seed), torch.Generator().manual_seed(seed)
    texts = [LabelledText("a", rng.choice("xyz")) for _ in range(40)]
    values = [LabelledText("a", 1000 + rng.random()) for _ in range(40)]
    sentences = [
        TaggedSentence(("w", "v", "u"), rng.choice([("O", "B-X", "I-X"), ("B-X", "O", "B-X")])) for _ in range(40)
    ]
    words = RowWords(*(np.array(each, np.int32) for each in ([1, 2, 3], [0, 2, 4], [1, 3, 5])))
    for objective, examples in (
        (Classification("xyz", texts), texts),
        (Regression(values), values),
        (Ner(("O", "B-X", "I-X"), sentences), sentences),
    ):
        targets = objective.targets(examples, [words] * 40)  # type: ignore[arg-type]
        rows = 3 if objective.about_words else 1
        outputs = [torch.randn(rows, objective.num_outputs, generator=order) for _ in range(40)]
        offset, factor = objective.scale
        outputs = [offset + factor * each for each in outputs]
        of_sums = objective.score(objective.terms(outputs, targets).sum(axis=0))  # type: ignore[arg-type]
        whole = objective.metrics(outputs, targets)[objective.main_metric]  # type: ignore[arg-type]
        assert float(of_sums) == pytest.approx(whole, abs=1e-9)


def test_nothing_to_correlate_or_find_scores_nothing() -> None:
    assert metrics.f1_of_sums(np.zeros(3)) == 0
    assert metrics.pearson_of_sums(metrics.pearson_terms(np.ones(4), np.arange(4.0)).sum(axis=0)) == 0

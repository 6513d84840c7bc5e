"""The figures that each task is judged by, all of them better when higher, but for `mse`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backends.engine.entities import Span

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def accuracy(predicted: Integers, true: Integers) -> float:
    return float((predicted == true).mean())


def macro_f1(predicted: Integers, true: Integers) -> float:
    """The mean F1 of the classes that occur in either."""
    classes = np.union1d(predicted, true)
    scores = []
    for each in classes:
        hits = int(((predicted == each) & (true == each)).sum())
        scores.append(f1(hits, int((predicted == each).sum()), int((true == each).sum())))
    return float(np.mean(scores))


def f1(hits: int, num_predicted: int, num_true: int) -> float:
    return 2 * hits / (num_predicted + num_true) if num_predicted + num_true else 0.0


def entity_scores(predicted: Sequence[frozenset[Span]], true: Sequence[frozenset[Span]]) -> dict[str, float]:
    """Over all rows together; an entity is found if its limits and its label are right."""
    hits = sum(len(spans & wanted) for spans, wanted in zip(predicted, true, strict=True))
    num_predicted, num_true = sum(map(len, predicted)), sum(map(len, true))
    return {
        "f1": f1(hits, num_predicted, num_true),
        "precision": hits / num_predicted if num_predicted else 0.0,
        "recall": hits / num_true if num_true else 0.0,
    }


def pearson(predicted: Floats, true: Floats) -> float:
    """0 where one of them never changes, as then there is nothing to correlate."""
    deviations = [values - values.mean() for values in (predicted, true)]
    scale = float(np.sqrt((deviations[0] ** 2).sum() * (deviations[1] ** 2).sum()))
    return float((deviations[0] * deviations[1]).sum()) / scale if scale > 0 else 0.0


def spearman(predicted: Floats, true: Floats) -> float:
    return pearson(_ranks(predicted), _ranks(true))


def _ranks(values: Floats) -> Floats:
    """Rank values in ascending order; equal values share their mean rank."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    ranks: Floats = (ends - (sizes - 1) / 2)[group]
    return ranks

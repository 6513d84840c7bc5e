"""The figures that each task is judged by, all of them better when higher, but for `mse`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backends.engine.entities import Span

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def ratio_of_sums(sums: Floats) -> Floats:
    """Divide the first of two sums by the second.

    Shape: `[..., 2]` → `[...]`
    """
    return _quotient(sums[..., 0], sums[..., 1])


def f1_of_sums(sums: Floats) -> Floats:
    """Compute F1 of the numbers of hits, of predicted and of true things.

    Shape: `[..., 3]` → `[...]`
    """
    hits, num_predicted, num_true = np.moveaxis(sums, -1, 0)
    return _quotient(2 * hits, num_predicted + num_true)


def entity_counts(predicted: frozenset[Span], true: frozenset[Span]) -> tuple[int, int, int]:
    """Count hits, predicted and true entities; an entity is found if its limits and its label are right."""
    return len(predicted & true), len(predicted), len(true)


def pearson_terms(predicted: Floats, true: Floats) -> Floats:
    """Return what Pearson's correlation adds up of each row.

    Shape: `[N]` both → `[N, 6]`
    """
    return np.stack([np.ones_like(true), predicted, true, predicted**2, true**2, predicted * true], axis=-1)


def pearson_of_sums(sums: Floats) -> Floats:
    """Compute the correlation by the sums of `pearson_terms`; 0 where one of the two never changes.

    Shape: `[..., 6]` → `[...]`
    """
    count, predicted, true, predicted_squares, true_squares, products = np.moveaxis(sums, -1, 0)
    variances = (count * predicted_squares - predicted**2) * (count * true_squares - true**2)
    return _quotient(count * products - predicted * true, np.sqrt(np.clip(variances, 0, None)))


def _quotient(dividend: Floats, divisor: Floats) -> Floats:
    """0 where there is nothing to divide by."""
    safe = np.where(divisor > 0, divisor, 1.0)
    return np.where(divisor > 0, dividend / safe, 0.0)


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
    """Score the entities of all rows together."""
    counts = np.array([entity_counts(*pair) for pair in zip(predicted, true, strict=True)], np.int64).reshape(-1, 3)
    hits, num_predicted, num_true = counts.sum(axis=0).tolist()
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

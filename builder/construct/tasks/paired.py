"""The difference between two models' scores on the same texts, and how certain it is.

A bootstrap draws the texts again and again, each draw the same texts for both models. So texts that both find hard, or
easy, say nothing about which model is better, and any main metric will do: accuracy, entity F1, correlation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from builder.construct.tasks.metrics import Floats

RESAMPLES = 2000
_AT_ONCE = 50
_TAILS = (2.5, 97.5)


@dataclass(frozen=True)
class Difference:
    """A score less another one, with the limits of its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.high < 0:
            return "worse"
        return "better" if self.low > 0 else "no clear difference"

    def __str__(self) -> str:
        return f"{self.value:+.4f} (95 % between {self.low:+.4f} and {self.high:+.4f})"


def paired_difference(terms: Floats, others: Floats, score: Callable[[Floats], Floats]) -> Difference:
    """Compute the score of `terms` minus that of `others`, which are of the same texts.

    Shape: both `[N, K]`, as `Objective.terms` gives them; score: `[..., K]` → `[...]`
    """
    both = np.stack([terms, others], axis=1)
    drawn = resampled(both, score, seed=0)
    value = np.subtract(*score(both.sum(axis=0)))
    low, high = np.percentile(drawn[:, 0] - drawn[:, 1], _TAILS)
    return Difference(float(value), float(low), float(high))


def resampled(terms: Floats, score: Callable[[Floats], Floats], seed: int) -> Floats:
    """Compute the scores of texts drawn with replacement.

    Shape: `[N, …, K]` → `[RESAMPLES, …]`
    """
    rng = np.random.default_rng(seed)
    count = len(terms)
    sums = []
    for start in range(0, RESAMPLES, _AT_ONCE):
        size = min(_AT_ONCE, RESAMPLES - start)
        drawn = rng.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        sums.append(np.tensordot(times.astype(np.float64), terms, axes=1))
    return score(np.concatenate(sums))

"""The gap between two schemes, in points of 100, with a paired interval: both answered the same test texts.

The interval says what other test texts might have given. It does not say what other seeds might have.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from bench.tasks.outcome import Outcome
from builder.construct.tasks.metrics import Floats, f1_of_sums, pearson_of_sums, ratio_of_sums
from builder.construct.tasks.paired import resampled

ENTITY_METRIC = "f1"
_SCORES: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {"accuracy": ratio_of_sums, ENTITY_METRIC: f1_of_sums, "pearson": pearson_of_sums}
)
_TAILS = (2.5, 97.5)


@dataclass(frozen=True)
class Gap:
    """How much the first scheme is above the second; `drawn` has the same of each resample of the texts."""

    value: float
    drawn: Floats

    @classmethod
    def of(cls, task: str, first: Sequence[Outcome], second: Sequence[Outcome]) -> Gap:
        """Measure one task, both schemes with the same seeds; their scores are averaged over the seeds."""
        score = _SCORES[first[0].metric]
        terms = np.stack([outcome.terms for outcome in (*first, *second)], axis=1)  # (texts, outcomes, sums)
        whole = 100 * score(terms.sum(axis=0))
        drawn = 100 * resampled(terms, score, seed=zlib.crc32(task.encode()))
        count = len(first)
        value = float(whole[:count].mean() - whole[count:].mean())
        return cls(value, drawn[:, :count].mean(axis=1) - drawn[:, count:].mean(axis=1))

    @classmethod
    def mean(cls, gaps: Sequence[Gap]) -> Gap:
        """Average over tasks, whose texts are drawn independently."""
        return cls(float(np.mean([gap.value for gap in gaps])), np.mean([gap.drawn for gap in gaps], axis=0))

    @property
    def interval(self) -> tuple[float, float]:
        """Return the limits of the 95 % interval."""
        low, high = np.percentile(self.drawn, _TAILS)
        return float(low), float(high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2f} ({low:.2f} to {high:.2f})"

"""What batches of one stack take: a cost model fitted to measured batches, and how far live ones are from it.

Usage:
    model = fit([Sample(BatchShape(64, 1300, 29_000, 40), measured_us=81_000.0), …])
    costs = LiveCosts(model); costs.observe(shape, measured_us); costs.predict_us(shape)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from backends.errors import InvalidArgumentError
from backends.scheduling.cost_model import OPTIMISTIC, BatchShape, CostModel

Floats = npt.NDArray[np.float64]

_NUM_TERMS = 5
_ROUNDS = 20
_SURE_ERROR = 0.05
"""Relative; errors beyond it weigh less and less."""
_SUBSETS = [list(terms) for size in range(1, _NUM_TERMS + 1) for terms in combinations(range(_NUM_TERMS), size)]
_GAIN = 1 / 8
_DEVIATIONS = 3.0
_FURTHEST = 3.0
_LEAST_WEIGHT = 0.25
_MOST_SAFETY = 2.0
_FIRST_FIT = 16
_WINDOW = 256
_FIT_EVERY = 64
_ANCHORS = tuple(
    BatchShape(rows, rows * length, rows * length * length, adapters)
    for rows, length, adapters in ((1, 8, 1), (1, 128, 1), (64, 8, 1), (64, 8, 64), (64, 64, 8))
)
"""Shapes that live batches may never have; without them a fit on batches all alike could say anything elsewhere."""


@dataclass(frozen=True)
class Sample:
    """A batch, and how long it took."""

    shape: BatchShape
    measured_us: float


def fit(samples: Sequence[Sample]) -> CostModel:
    """The model whose relative errors are least, by Huber's measure."""
    if len(samples) < _NUM_TERMS:
        raise InvalidArgumentError(f"a cost model needs at least {_NUM_TERMS} measured batches, not {len(samples)}")
    measured = np.array([sample.measured_us for sample in samples])
    terms = np.array([_terms(sample.shape) for sample in samples]) / measured[:, None]
    weights = np.ones(len(samples))
    for _ in range(_ROUNDS):
        coefficients = _non_negative(terms, weights)
        errors = np.abs(terms @ coefficients - 1.0)
        # Where a fit is rough, its usual error is no outlier.
        sure = max(_SURE_ERROR, 1.5 * float(np.median(errors)))
        weights = np.minimum(1.0, sure / np.maximum(errors, 1e-12))
    return CostModel(*coefficients.tolist())


def mean_absolute_percentage_error(model: CostModel, samples: Sequence[Sample]) -> float:
    """In percent of what was measured."""
    errors = [abs(model.predict_us(sample.shape) / sample.measured_us - 1.0) for sample in samples]
    return 100.0 * float(np.mean(errors))


class Estimator:
    """Smoothed mean and deviation of the ratio of measured to predicted time, as TCP smooths round-trip times.

    Semantics:
        The first batch warms the machine up, and nothing is learned from it. Each later one moves `typical` towards its
        ratio by an eighth, the first ones by more; a batch shorter than usual by less, because backlogs are sums. One
        batch counts as no further from `typical` than three times.
        `safety` is what to multiply by so that hardly any sum of batches takes longer; it rises at once when a level
        shifts, because the deviation does, and falls as batches agree again.
    """

    def __init__(self) -> None:
        self.typical = 1.0
        self._deviation = 0.0
        self._mean_us = 0.0
        self._num_batches = 0

    @property
    def safety(self) -> float:
        return min(_MOST_SAFETY, 1.0 + _DEVIATIONS * self._deviation / self.typical)

    def restart(self) -> None:
        """Begin at the predictions of another cost model, with batches that vary as before."""
        self._deviation /= self.typical
        self.typical = 1.0

    def observe(self, predicted_us: float, measured_us: float) -> None:
        """Learn from one batch; `predicted_us` is by the cost model alone."""
        if predicted_us <= 0 or measured_us <= 0:
            return
        self._num_batches += 1
        gain = max(_GAIN, 1 / self._num_batches)
        self._mean_us += gain * (predicted_us - self._mean_us)
        if self._num_batches == 1:
            return
        gain *= min(1.0, max(_LEAST_WEIGHT, predicted_us / self._mean_us))
        ratio = min(max(measured_us / predicted_us, self.typical / _FURTHEST), self.typical * _FURTHEST)
        error = ratio - self.typical
        self.typical += gain * error
        self._deviation += min(1.0, 2 * gain) * (abs(error) - self._deviation)


class LiveCosts:
    """Predicts, and learns from every batch. Without a profile it begins with a model by which no row is rejected.

    Args:
        profiled: What a batch takes until the next one may begin.
        tail: What it takes from then to its end, as a multiple of that: in the other stages, where there are some.
    """

    def __init__(self, profiled: CostModel | None = None, tail: float = 0.0) -> None:
        self.tail = tail
        self._is_profiled = profiled is not None
        self._model = profiled or OPTIMISTIC
        self._estimator = Estimator()
        self._recent: deque[Sample] = deque(maxlen=_WINDOW)
        self._until_fit = _FIRST_FIT
        self._current = self._model

    @property
    def model(self) -> CostModel:
        """The cost model with all that was learned so far."""
        return self._current

    @property
    def safety(self) -> float:
        """What to multiply predictions by that are to hold."""
        return self._estimator.safety

    def predict_us(self, shape: BatchShape) -> float:
        return self._current.predict_us(shape)

    def uncorrected_us(self, shape: BatchShape) -> float:
        """Predict by the profile, or the latest fit, alone."""
        return self._model.predict_us(shape)

    def observe(self, shape: BatchShape, measured_us: float) -> None:
        """Learn from a batch that has run."""
        if measured_us <= 0:
            return
        self._estimator.observe(self.uncorrected_us(shape), measured_us)
        self._current = self._model.scaled(self._estimator.typical)
        if not self._is_profiled:
            self._recent.append(Sample(shape, measured_us))
            self._until_fit -= 1

    def fit_if_due(self) -> CostModel | None:
        """Fit a model to the latest batches now and then; takes tens of milliseconds, so call it without a lock."""
        if self._is_profiled or self._until_fit > 0:
            return None
        self._until_fit = _FIT_EVERY
        anchors = [Sample(shape, self._current.predict_us(shape)) for shape in _ANCHORS]
        return fit([*list(self._recent), *anchors])

    def adopt(self, model: CostModel) -> None:
        """Predict by a fitted model from now on; how far batches were from the old one says nothing about it."""
        self._current = self._model = model
        self._estimator.restart()


def _terms(shape: BatchShape) -> tuple[float, ...]:
    return shape.depth, float(shape.rows), float(shape.tokens), float(shape.squared_lengths), float(shape.adapters)


def _non_negative(terms: Floats, weights: Floats) -> Floats:
    """Least squares with no coefficient below 0; of five, each set that may be above 0 is tried."""
    scale = np.maximum(np.abs(terms).max(axis=0), 1e-30)
    scaled = terms / scale
    gram, target = scaled.T @ (weights[:, None] * scaled), scaled.T @ weights
    best: Floats = np.zeros(_NUM_TERMS)
    best_loss = np.inf
    for subset in _SUBSETS:
        part, *_ = np.linalg.lstsq(gram[np.ix_(subset, subset)], target[subset], rcond=1e-10)
        if (part < 0).any():
            continue
        candidate = np.zeros(_NUM_TERMS)
        candidate[subset] = part
        loss = float(candidate @ gram @ candidate - 2 * candidate @ target)
        if loss < best_loss:
            best, best_loss = candidate, loss
    return np.asarray(best / scale, np.float64)

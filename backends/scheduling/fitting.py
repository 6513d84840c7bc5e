"""Fitting a cost model to measured batches: non-negative, by relative error, and whatever single slow batches say.

Usage:
    model = fit([Sample(BatchShape(64, 1300, 29_000, 40), measured_us=81_000.0), …])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from backends.errors import InvalidArgumentError
from backends.scheduling.cost_model import BatchShape, CostModel

Floats = npt.NDArray[np.float64]

_NUM_TERMS = 5
_ROUNDS = 20
_SURE_ERROR = 0.05
"""Relative; errors beyond it weigh less and less."""
_SUBSETS = [list(terms) for size in range(1, _NUM_TERMS + 1) for terms in combinations(range(_NUM_TERMS), size)]


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


def _terms(shape: BatchShape) -> tuple[float, ...]:
    return 1.0, float(shape.rows), float(shape.tokens), float(shape.squared_lengths), float(shape.adapters)


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

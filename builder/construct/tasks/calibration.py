"""Calibration: the one number that makes a classifier's confidences true, and how far from true they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from builder.construct.tasks.ner import TaggedRow

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
NO_LABEL = -1
"""Any number below 0 means that."""
TEMPERATURES = (0.05, 20.0)
"""Labels that were smoothed leave an hPLM less sure than it is right, so a temperature may be below 1."""
NUM_BINS = 15
_GOLDEN = (math.sqrt(5) - 1) / 2
_PRECISION = 1e-4


def labels_of(target: Any, num_labels: int) -> Tensor:
    """Return the labels that a row's target names: one, or one for each word."""
    if isinstance(target, TaggedRow):
        return target.tags
    return torch.tensor([target if target < num_labels else NO_LABEL])


def fit_temperature(logits: Tensor, targets: Tensor) -> float:
    """Find the temperature under which the targets are likeliest.

    That N answers are all right does not mean that the next one is: such targets are smoothed, so that each is right
    with a probability of N + 1 of N + 2. Logits that fit any temperature have one of `TEMPERATURES`.

    Shape: logits `[N, C]`; targets `[N]` classes, or `[N, C]` the probability of each
    """
    logits = logits.double()
    if targets.ndim == 2:
        targets = targets.double()
    elif len(targets) and (logits.argmax(dim=-1) == targets).all():
        targets = _smoothed(targets, *logits.shape)

    def loss(log_temperature: float) -> float:
        return float(functional.cross_entropy(logits / math.exp(log_temperature), targets))

    low, high = map(math.log, TEMPERATURES)
    return math.exp(_least(loss, low, high))


def is_at_bound(temperature: float) -> bool:
    """Whether a temperature is no best one: that would be beyond what is tried, or there is none."""
    return any(math.isclose(temperature, bound, rel_tol=0.01) for bound in TEMPERATURES)


def _smoothed(targets: Tensor, count: int, num_classes: int) -> Tensor:
    """Return the probabilities of classes that are right once more, and once wrong: `[N]` → `[N, C]`."""
    wrong = 1 / (count + 2)
    others = torch.full((count, num_classes), wrong / max(1, num_classes - 1), dtype=torch.float64)
    return others.scatter(1, targets[:, None], 1 - wrong)


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Find where a function with one valley is least, by golden sections."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > _PRECISION:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2


def confidences(logits: Tensor, temperature: float) -> Floats:
    """Return the probability of each row's likeliest class.

    Shape: `[N, C]` → `[N]`
    """
    found: Floats = torch.softmax(logits.double() / temperature, dim=-1).amax(dim=-1).numpy()
    return found


def calibration_error(confidence: Floats, is_right: Bools) -> float:
    """Return how far confidences are from the share that is right, in bins of equal width, weighted by their rows.

    Shape: both `[N]`
    """
    bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    differences = np.bincount(bins, weights=confidence - is_right, minlength=NUM_BINS)
    return float(np.abs(differences).sum() / len(confidence))

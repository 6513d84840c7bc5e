"""Early heads: linear answers of the states after an upper layer, fitted while everything else stays as it is.

One for labels is a multinomial logistic regression that learns the full model's answers, and the labels where there are
any, half and half. One for numbers learns the full answer, and then how far from it its own is on other texts. All are
convex, so each fit ends at the same head from any start, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from backends.adapters.head import Head
from backends.errors import TrainingDataError

_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
"""Factors on the weights' squares, for features of unit deviation."""
_PENALTIES_OF_NUMBERS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Stiffer: features of pairs are as many as their texts, and an error's size is hard to learn."""
_ROWS_TO_CHOOSE_BY = 10
"""One row of this many chooses the penalty."""
_MOST_TO_TRY_BY = 10_000
"""Penalties are tried by about as many rows at most; the best one's head then learns from all."""
_STEPS_TO_TRY, _MOST_STEPS = 30, 200
"""Which penalty is best shows long before its head is found."""
MOST_ANSWERS = 50_000
"""Texts have many words, and more of them teach a head no more."""
_LEAST_DEVIATION = 1e-6
_LEAST_VARIANCE = 1e-6
"""Of an early number's error, in units of the full answers' variance: none is said to be nearer than a thousandth."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of outputs `[M, C]` for the rows whose indices `[M]` these are."""


@dataclass(frozen=True)
class HeadData:
    """What an early head for labels learns from.

    Shape: states `[N, P]`; answers `[N, C]`, the full model's logits; labels `[N]`, of which -1 is none
    """

    states: Tensor
    answers: Tensor
    labels: Tensor

    def thinned(self, most: int) -> HeadData:
        """Take as many answers at most, evenly spread."""
        chosen = torch.linspace(0, len(self.labels) - 1, min(most, len(self.labels))).round().long()
        return HeadData(self.states[chosen], self.answers[chosen], self.labels[chosen])

    @property
    def wanted(self) -> Tensor:
        """Return the probabilities to learn, `[N, C]`."""
        answers = torch.softmax(self.answers.double(), dim=-1)
        known = self.labels >= 0
        labels = functional.one_hot(self.labels.clamp_min(0), answers.shape[1]).double()
        return torch.where(known[:, None], (answers + labels) / 2, answers)


class NumberHead(NamedTuple):
    """A head that answers with numbers, and the standard deviation of the full answers, which is its unit of errors."""

    head: Head
    scale: float


def fit_early_head(data: HeadData) -> Head:
    """Fit a head for labels; the penalty of its weights is chosen by rows that it does not learn from."""
    data = data.thinned(MOST_ANSWERS)
    features, wanted = _Features(data.states, _PENALTIES), data.wanted
    return features.head(
        features.fitted(wanted.shape[1], lambda outputs, rows: functional.cross_entropy(outputs, wanted[rows]))
    )


def fit_number_head(states: Tensor, answers: Tensor) -> NumberHead:
    """Fit a head for numbers, whose second output is the logarithm of the variance of its first one's error.

    Raises:
        TrainingDataError: All full answers are alike.

    Shape: states `[N, P]`; answers `[N]`, the full model's
    """
    middle, scale = answers.double().mean(), float(answers.double().std())
    if not scale > 0:
        raise TrainingDataError("the full answers to all training texts are the same number: there is nothing to learn")
    features, wanted = _Features(states, _PENALTIES_OF_NUMBERS), (answers.double() - middle) / scale

    def value(outputs: Tensor, rows: Tensor) -> Tensor:
        return functional.mse_loss(outputs[:, 0], wanted[rows])

    folds = torch.arange(len(wanted)) % 2
    squared_errors = torch.empty_like(wanted)
    for fold in range(2):  # errors are those on rows that were not learned from
        weights, others = features.fitted(1, value, folds != fold), folds == fold
        squared_errors[others] = (features.outputs(weights, others)[:, 0] - wanted[others]).square()
    variances = squared_errors.clamp_min(_LEAST_VARIANCE)

    def log_variance(outputs: Tensor, rows: Tensor) -> Tensor:
        return (outputs[:, 0] + variances[rows] * torch.exp(-outputs[:, 0])).mean() / 2

    of_value, of_variance = features.head(features.fitted(1, value)), features.head(features.fitted(1, log_variance))
    weight = torch.cat([scale * of_value.weight, of_variance.weight])
    return NumberHead(Head(weight, torch.cat([scale * of_value.bias + float(middle), of_variance.bias])), scale)


class _Features:
    """States brought to unit deviation, and linear functions of them: weights with the bias in the last column."""

    def __init__(self, states: Tensor, penalties: Sequence[float]) -> None:
        self._penalties = sorted(penalties, reverse=True)
        self._mean = states.double().mean(dim=0)
        self._deviation = states.double().std(dim=0).clamp_min(_LEAST_DEVIATION)
        self._values = (states.double() - self._mean) / self._deviation

    def outputs(self, weights: Tensor, rows: Tensor) -> Tensor:
        return _linear(self._values[rows], weights)

    def fitted(self, num_outputs: int, loss: Loss, of_rows: Tensor | None = None) -> Tensor:
        """Return the weights `[C, P + 1]` of the best penalty, by all rows or by those of a mask."""
        rows = torch.arange(len(self._values)) if of_rows is None else of_rows.nonzero()[:, 0]
        tries = rows[:: max(1, len(rows) // _MOST_TO_TRY_BY)]
        chooses = torch.arange(len(tries)) % _ROWS_TO_CHOOSE_BY == 0
        weights = torch.zeros(num_outputs, self._values.shape[1] + 1, dtype=torch.float64)
        best, least = self._penalties[0], math.inf
        for penalty in self._penalties:  # from the stiffest on, each begins where the last one ended
            weights = self._minimised(loss, tries[~chooses], penalty, weights, _STEPS_TO_TRY)
            found = float(loss(self.outputs(weights, tries[chooses]), tries[chooses]))
            best, least = (penalty, found) if found < least else (best, least)
        return self._minimised(loss, rows, best, weights)

    def _minimised(
        self, loss: Loss, rows: Tensor, penalty: float, start: Tensor, most_steps: int = _MOST_STEPS
    ) -> Tensor:
        values, weights = self._values[rows], start.clone().requires_grad_(True)
        optimiser = torch.optim.LBFGS([weights], max_iter=most_steps, history_size=10, line_search_fn="strong_wolfe")

        def step() -> Tensor:
            optimiser.zero_grad()
            of_all = loss(_linear(values, weights), rows) + penalty * weights[:, :-1].square().sum()
            of_all.backward()  # type: ignore[no-untyped-call]
            return of_all

        with torch.enable_grad():
            optimiser.step(step)  # type: ignore[no-untyped-call]
        return weights.detach()

    def head(self, weights: Tensor) -> Head:
        """Make a head of the states themselves."""
        weight = weights[:, :-1] / self._deviation
        return Head(weight.float(), (weights[:, -1] - weight @ self._mean).float())


def _linear(values: Tensor, weights: Tensor) -> Tensor:
    return torch.addmm(weights[:, -1], values, weights[:, :-1].T)

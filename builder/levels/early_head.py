"""Early heads: classifiers on the states after an upper layer, fitted while everything else stays as it is.

A multinomial logistic regression learns the full model's answers, and the labels where there are any, half and half.
It is convex, so it ends at the same head from any start, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from backends.adapters.head import Head

_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
"""Factors on the weights' squares, for features of unit deviation."""
_ROWS_TO_CHOOSE_BY = 10
"""One row of this many chooses the penalty."""
_MOST_STEPS = 200
MOST_ANSWERS = 50_000
"""Texts have many words, and more of them teach a head no more."""
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class HeadData:
    """What an early head learns from.

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


def fit_early_head(data: HeadData) -> Head:
    """Fit a head; the penalty of its weights is chosen by rows that it does not learn from."""
    data = data.thinned(MOST_ANSWERS)
    mean, deviation = data.states.double().mean(dim=0), data.states.double().std(dim=0)
    features = (data.states.double() - mean) / deviation.clamp_min(_LEAST_DEVIATION)
    wanted = data.wanted
    chooses = torch.arange(len(features)) % _ROWS_TO_CHOOSE_BY == 0
    start = torch.zeros(wanted.shape[1], features.shape[1] + 1, dtype=torch.float64)
    losses: dict[float, float] = {}
    for penalty in sorted(_PENALTIES, reverse=True):  # from the stiffest on, each begins where the last one ended
        start = _fitted(features[~chooses], wanted[~chooses], penalty, start)
        losses[penalty] = float(_loss(features[chooses], wanted[chooses], start))
    fitted = _fitted(features, wanted, min(losses, key=lambda penalty: losses[penalty]), start)
    weight = fitted[:, :-1] / deviation.clamp_min(_LEAST_DEVIATION)
    return Head(weight.float(), (fitted[:, -1] - weight @ mean).float())


def _fitted(features: Tensor, wanted: Tensor, penalty: float, start: Tensor) -> Tensor:
    """Return weights with the bias in the last column: `[C, P + 1]`."""
    weights = start.clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS([weights], max_iter=_MOST_STEPS, history_size=10, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimiser.zero_grad()
        loss = _loss(features, wanted, weights) + penalty * weights[:, :-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimiser.step(step)  # type: ignore[no-untyped-call]
    return weights.detach()


def _loss(features: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    return functional.cross_entropy(torch.addmm(weights[:, -1], features, weights[:, :-1].T), wanted)

"""Guarantees: how small a loss on a tenant's held-out texts proves that a tolerance is kept, for it or for the fleet.

Usage:
    guarantee = Each(risk=0.1)
    guarantee.holds(Loss(3), rows=700, tolerance=0.01)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

_BISECTIONS = 40
_RISK_OF_CHANGES = 0.1
_SHARES_OF_CHANGES = 6
_TAIL_DEVIATIONS = 12
"""Of a sum, what lies further from its mean than so many deviations is taken to be impossible."""


class Loss(NamedTuple):
    """What becomes of rows against full answers: how many are harmed, parts added up, and how many are put right."""

    harms: float
    helps: int = 0


class Guarantee(Protocol):
    """A test of the share that is lost."""

    def lost(self, loss: Loss) -> float:
        """Return how many rows it takes to be lost, parts added up."""
        ...

    def holds(self, loss: Loss, rows: int, tolerance: float) -> bool:
        """Whether so small a loss proves that the tolerance is kept."""
        ...

    def bound(self, loss: Loss, rows: int) -> float:
        """Return the least tolerance that this loss proves to be kept."""
        ...

    def least_rows(self, tolerance: float) -> int:
        """Return how many rows could prove it at all: where nothing is lost."""
        ...

    def proves_better(self, helped: int, harmed: int) -> bool:
        """Whether other answers are proven to be better: they put so many rows right, and so many wrong."""
        ...


@dataclass(frozen=True)
class Each:
    """Each tenant keeps its tolerance, but for a share `risk` of them; a row is harmed or not: the binomial test."""

    risk: float

    def lost(self, loss: Loss) -> float:
        return loss.harms

    def holds(self, loss: Loss, rows: int, tolerance: float) -> bool:
        return self.likelihood(loss, rows, tolerance) <= self.risk

    def bound(self, loss: Loss, rows: int) -> float:
        """Return the share under which so small a loss is as unlikely as the risk (Clopper and Pearson, of rows)."""
        if loss.harms >= rows:
            return 1.0
        low, high = max(0.0, self.lost(loss) / rows), 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.likelihood(loss, rows, middle) > self.risk else (low, middle)
        return high

    def least_rows(self, tolerance: float) -> int:
        return math.ceil(math.log(self.risk) / math.log1p(-tolerance))

    def proves_better(self, helped: int, harmed: int) -> bool:
        """Go by the sign test: were they no better, a changed row would be put wrong as likely as right."""
        return binomial_tail(harmed, helped + harmed, 0.5) <= self.risk

    def likelihood(self, loss: Loss, rows: int, share: float) -> float:
        """Return how likely so small a loss is, at most, where this share is lost of all texts."""
        return binomial_tail(round(loss.harms), rows, share)


class EachInParts(Each):
    """`Each`, where a part of a row may be lost: the bound of Hoeffding and Bentkus."""

    def likelihood(self, loss: Loss, rows: int, share: float) -> float:
        mean = loss.harms / rows
        if mean >= share:
            return 1.0
        bentkus = math.e * binomial_tail(math.ceil(loss.harms), rows, share)
        return min(math.exp(-rows * _divergence(mean, share)), bentkus)


class EachOnBalance(Each):
    """`Each`, where rows that are put right make up for rows that are harmed: a test of the difference of both.

    Semantics:
        How many texts change is not known, and where many do, a small difference is likelier by itself. So the share of
        changed texts is bounded at a tenth of the risk; the difference is tested at the rest, with the worst share up
        to that bound (Berger and Boos).
    """

    def lost(self, loss: Loss) -> float:
        return loss.harms - loss.helps

    def likelihood(self, loss: Loss, rows: int, share: float) -> float:
        difference = round(loss.harms) - loss.helps
        if difference >= share * rows:
            return 1.0
        bounded_at = _RISK_OF_CHANGES * self.risk
        changed = max(share, _most_lost(bounded_at, round(loss.harms) + loss.helps, rows))
        shares = np.linspace(share, changed, _SHARES_OF_CHANGES).tolist()
        return bounded_at + max(difference_tail(difference, rows, share, each) for each in shares)


@dataclass(frozen=True)
class Fleet:
    """Tenants keep the tolerance in the mean, and one may exceed it: conformal risk control.

    Args:
        num_candidates: Of as many ladders one is taken. It loses no more than all of them together, so each has to keep
            one part in as many of the tolerance.

    Semantics:
        A tenant's next text is as likely to be lost as any of its rows, so over tenants `E[(lost + 1) / (rows + 1)]`
        bounds the mean loss of the last threshold that holds, if losses only grow as thresholds fall.
    """

    num_candidates: int = 1

    def lost(self, loss: Loss) -> float:
        return loss.harms

    def holds(self, loss: Loss, rows: int, tolerance: float) -> bool:
        return self.bound(loss, rows) <= tolerance

    def bound(self, loss: Loss, rows: int) -> float:
        return min(1.0, self.num_candidates * (loss.harms + 1) / (rows + 1))

    def least_rows(self, tolerance: float) -> int:
        rows = math.ceil(self.num_candidates / tolerance - 1)
        return rows if self.holds(Loss(0), rows, tolerance) else rows + 1  # the quotient was rounded

    def proves_better(self, helped: int, harmed: int) -> bool:
        """A mean over tenants proves nothing about one of them."""
        return False


@lru_cache(maxsize=1024)
def _most_lost(risk: float, lost: int, rows: int) -> float:
    """Return the bound of the binomial test, which a search asks for many times."""
    return Each(risk).bound(Loss(lost), rows)


def binomial_tail(most: int, rows: int, share: float) -> float:
    """Return how likely at most `most` of the rows are lost where each is with a probability of `share`."""
    if most >= rows:
        return 1.0
    log_share, log_rest = math.log(share), math.log1p(-share)
    term, total = rows * log_rest, 0.0
    for lost in range(most + 1):
        total += math.exp(term)
        term += math.log(rows - lost) - math.log(lost + 1) + log_share - log_rest
    return min(1.0, total)


def difference_tail(most: int, rows: int, share: float, changed: float) -> float:
    """Return how likely harms are at most `most` more than helps, where a share of texts is changed.

    Args:
        most: The largest difference.
        rows: How many texts are seen.
        share: How much more likely a text is harmed than helped.
        changed: How likely it is either.

    Semantics:
        The distribution of the difference is read off its characteristic function. The circle that it is wound around
        is wide enough that its far tails, which fall on each other, are below 1e-12.
    """
    reach = math.ceil(rows * share + _TAIL_DEVIATIONS * math.sqrt(rows * changed)) + _TAIL_DEVIATIONS
    if most >= reach:
        return 1.0
    if most < -reach:
        return 0.0
    size = 1 << (2 * reach).bit_length()
    turn = np.exp(-2j * np.pi * np.arange(size) / size)
    harmed, helped = (changed + share) / 2, (changed - share) / 2
    likely = np.fft.ifft((1 - changed + harmed * turn + helped * turn.conj()) ** rows).real
    # Differences below 0 stand at the end.
    below = likely[size - reach :].sum() if most >= 0 else likely[size - reach : size + most + 1].sum()
    upwards = likely[: most + 1].sum() if most >= 0 else 0.0
    return float(min(1.0, max(0.0, below + upwards)))


def _divergence(share: float, other: float) -> float:
    """Return the relative entropy of two coins, of which the first may always fall on one side."""
    of_lost = share * math.log(share / other) if share > 0 else 0.0
    return of_lost + (1 - share) * math.log((1 - share) / (1 - other))

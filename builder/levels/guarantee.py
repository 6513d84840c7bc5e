"""Guarantees: how small a loss on a tenant's held-out texts proves that a tolerance is kept, for it or for the fleet.

Usage:
    guarantee = Each(risk=0.1)
    guarantee.holds(lost=3, rows=700, tolerance=0.01)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

_BISECTIONS = 60


class Guarantee(Protocol):
    """A test of the share that is lost; what is lost of rows adds up to `lost`."""

    def holds(self, lost: float, rows: int, tolerance: float) -> bool:
        """Whether so small a loss proves that the tolerance is kept."""
        ...

    def bound(self, lost: float, rows: int) -> float:
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
    """Each tenant keeps its tolerance, but for a share `risk` of them; a row is lost or not: the binomial test."""

    risk: float

    def holds(self, lost: float, rows: int, tolerance: float) -> bool:
        return self.likelihood(lost, rows, tolerance) <= self.risk

    def bound(self, lost: float, rows: int) -> float:
        """Return the share under which so small a loss is as unlikely as the risk (Clopper and Pearson, of rows)."""
        if lost >= rows:
            return 1.0
        low, high = lost / rows, 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.likelihood(lost, rows, middle) > self.risk else (low, middle)
        return high

    def least_rows(self, tolerance: float) -> int:
        return math.ceil(math.log(self.risk) / math.log1p(-tolerance))

    def proves_better(self, helped: int, harmed: int) -> bool:
        """Go by the sign test: were they no better, a changed row would be put wrong as likely as right."""
        return binomial_tail(harmed, helped + harmed, 0.5) <= self.risk

    def likelihood(self, lost: float, rows: int, share: float) -> float:
        """Return how likely so small a loss is, at most, where this share is lost of all texts."""
        return binomial_tail(round(lost), rows, share)


class EachInParts(Each):
    """`Each`, where a part of a row may be lost: the bound of Hoeffding and Bentkus."""

    def likelihood(self, lost: float, rows: int, share: float) -> float:
        mean = lost / rows
        if mean >= share:
            return 1.0
        bentkus = math.e * binomial_tail(math.ceil(lost), rows, share)
        return min(math.exp(-rows * _divergence(mean, share)), bentkus)


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

    def holds(self, lost: float, rows: int, tolerance: float) -> bool:
        return self.bound(lost, rows) <= tolerance

    def bound(self, lost: float, rows: int) -> float:
        return min(1.0, self.num_candidates * (lost + 1) / (rows + 1))

    def least_rows(self, tolerance: float) -> int:
        rows = math.ceil(self.num_candidates / tolerance - 1)
        return rows if self.holds(0, rows, tolerance) else rows + 1  # the quotient was rounded

    def proves_better(self, helped: int, harmed: int) -> bool:
        """A mean over tenants proves nothing about one of them."""
        return False


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


def _divergence(share: float, other: float) -> float:
    """Return the relative entropy of two coins, of which the first may always fall on one side."""
    of_lost = share * math.log(share / other) if share > 0 else 0.0
    return of_lost + (1 - share) * math.log((1 - share) / (1 - other))

"""Guarantees: how small a loss on a tenant's held-out texts proves that a tolerance is kept, for it or for the fleet.

Usage:
    guarantee = Each(risk=0.1)
    guarantee.holds(Balance(3), rows=700, tolerance=0.01)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

_BISECTIONS = 32
_PART_OF_RISK = 0.1
_GRID_POINTS = 6
"""Between the least share of texts that may change and its bound. The tail grows with the share, so that the last one
decides; up to a share of 0.9 no other was found to be more than 0.2 % above."""
_TAIL_DEVIATIONS = 12
"""Of a sum, what lies further from its mean than so many deviations is taken to be impossible."""


class Balance(NamedTuple):
    """What becomes of rows against full answers: how many are harmed, parts added up, and how many are put right."""

    harms: float
    helps: int = 0


class Guarantee(Protocol):
    """A test of the share that is lost."""

    counts_helps: ClassVar[bool]
    """Whether rows that are put right make up for rows that are harmed."""

    def lost(self, balance: Balance) -> float:
        """Return how many rows it takes to be lost, parts added up."""
        ...

    def holds(self, balance: Balance, rows: int, tolerance: float) -> bool:
        """Whether so small a loss proves that the tolerance is kept."""
        ...

    def bound(self, balance: Balance, rows: int) -> float:
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
    counts_helps: ClassVar[bool] = False

    def lost(self, balance: Balance) -> float:
        return balance.harms

    def holds(self, balance: Balance, rows: int, tolerance: float) -> bool:
        return self.likelihood(balance, rows, tolerance) <= self.risk

    def bound(self, balance: Balance, rows: int) -> float:
        """Return the share under which so small a loss is as unlikely as the risk (Clopper and Pearson, of rows)."""
        if balance.harms >= rows:
            return 1.0
        low, high = max(0.0, self.lost(balance) / rows), 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.likelihood(balance, rows, middle) > self.risk else (low, middle)
        return high

    def least_rows(self, tolerance: float) -> int:
        return math.ceil(math.log(self.risk) / math.log1p(-tolerance))

    def proves_better(self, helped: int, harmed: int) -> bool:
        """Go by the sign test: were they no better, a changed row would be put wrong as likely as right."""
        return binomial_tail(harmed, helped + harmed, 0.5) <= self.risk

    def likelihood(self, balance: Balance, rows: int, share: float) -> float:
        """Return how likely so small a loss is, at most, where this share is lost of all texts."""
        return binomial_tail(round(balance.harms), rows, share)


class EachInParts(Each):
    """`Each`, where a part of a row may be lost: the bound of Hoeffding and Bentkus."""

    def likelihood(self, balance: Balance, rows: int, share: float) -> float:
        mean = balance.harms / rows
        if mean >= share:
            return 1.0
        bentkus = math.e * binomial_tail(math.ceil(balance.harms), rows, share)
        return min(math.exp(-rows * _divergence(mean, share)), bentkus)


class EachOnBalance(Each):
    """`Each`, where rows that are put right make up for rows that are harmed: a test of the difference of both.

    Semantics:
        How many texts change is not known, and where many do, a small difference is likelier by itself. So the share of
        changed texts is bounded at a tenth of the risk; the difference is tested at the rest, with the worst share up
        to that bound (Berger and Boos).
    """

    counts_helps: ClassVar[bool] = True

    def lost(self, balance: Balance) -> float:
        return balance.harms - balance.helps

    def least_rows(self, tolerance: float) -> int:
        return Each((1 - _PART_OF_RISK) * self.risk).least_rows(tolerance)

    def likelihood(self, balance: Balance, rows: int, share: float) -> float:
        return _likelihood_on_balance(self.risk, round(balance.harms), balance.helps, rows, share)


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
    counts_helps: ClassVar[bool] = False

    def lost(self, balance: Balance) -> float:
        return balance.harms

    def holds(self, balance: Balance, rows: int, tolerance: float) -> bool:
        return self.bound(balance, rows) <= tolerance

    def bound(self, balance: Balance, rows: int) -> float:
        return min(1.0, self.num_candidates * (balance.harms + 1) / (rows + 1))

    def least_rows(self, tolerance: float) -> int:
        rows = math.ceil(self.num_candidates / tolerance - 1)
        return rows if self.holds(Balance(0), rows, tolerance) else rows + 1  # the quotient was rounded

    def proves_better(self, helped: int, harmed: int) -> bool:
        """A mean over tenants proves nothing about one of them."""
        return False


@lru_cache(maxsize=1 << 16)
def _likelihood_on_balance(risk: float, harms: int, helps: int, rows: int, share: float) -> float:
    """Return what `EachOnBalance` says; thresholds that lie near each other lose the same, and searches ask again."""
    if harms - helps >= share * rows:
        return 1.0
    bounded_at = _PART_OF_RISK * risk
    changed = max(share, _most_lost(bounded_at, harms + helps, rows))
    shares = np.linspace(share, changed, _GRID_POINTS).tolist()
    return bounded_at + max(difference_tail(harms - helps, rows, share, each) for each in shares)


@lru_cache(maxsize=1 << 10)
def _most_lost(risk: float, lost: int, rows: int) -> float:
    """Return the bound of the binomial test, which a search asks for many times."""
    return Each(risk).bound(Balance(lost), rows)


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

"""Certificates: thresholds of which a statistical test says that answering early costs no more than was allowed.

Harm is a row that the full model has right and the early answer has wrong. The drop in accuracy is at most the share of
harm, so a bound of that share bounds the drop. Thresholds are tried in an order that was fixed before, the strictest
first, until the first one fails: however many were tried, an error needs the first bad one to pass, so the risk of the
whole is that of one test.

Usage:
    certificate = certify(confidence, is_harm, tolerance=0.01, risk=0.1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # the manager checks targets without PyTorch
    from builder.construct.tasks.calibration import Bools, Floats

NUM_THRESHOLDS = 201
THRESHOLDS: tuple[float, ...] = tuple(
    1 - 0.0005 * 1000 ** (step / (NUM_THRESHOLDS - 1)) for step in range(NUM_THRESHOLDS)
)
"""From 0.9995 down to 0.5; fine near 1, where most rows are. A fine grid costs nothing."""
_BISECTIONS = 60


@dataclass(frozen=True)
class Certificate:
    """A threshold that has passed.

    Attributes:
        threshold: Least confidence of a row that is answered early.
        rows: Number of rows that it was tested on.
        harms: How many of them it harms.
        bound: Of the share of harm, at the risk that was asked for.
        exit_share: Share of the rows that it answers early.
    """

    threshold: float
    rows: int
    harms: int
    bound: float
    exit_share: float


def certify(
    confidence: Floats, is_harm: Bools, tolerance: float, risk: float, harmed_if_it_stays: Bools | None = None
) -> Certificate | None:
    """Find the lowest threshold that passes; None where the strictest one fails.

    Args:
        confidence: Of the early answers, `[N]`.
        is_harm: Whether answering a row early would be harm, `[N]`.
        tolerance: The largest share of harm that is allowed.
        risk: How likely a threshold of more harm may pass.
        harmed_if_it_stays: Whether the full answer would be harm, `[N]`; by default none is.
    """
    rows = len(confidence)
    order = np.argsort(-confidence, kind="stable")
    more = is_harm[order].astype(int)
    always = 0
    if harmed_if_it_stays is not None:
        more, always = more - harmed_if_it_stays[order], int(harmed_if_it_stays.sum())
    descending, harms_up_to = -confidence[order], always + np.concatenate([[0], np.cumsum(more)])
    passed: tuple[float, int, int] | None = None
    for threshold in THRESHOLDS:
        leaving = int(np.searchsorted(descending, -threshold, side="right"))
        harms = int(harms_up_to[leaving])
        if binomial_tail(harms, rows, tolerance) > risk:
            break
        passed = threshold, harms, leaving
    if passed is None:
        return None
    threshold, harms, leaving = passed
    return Certificate(threshold, rows, harms, upper_bound(harms, rows, risk), leaving / rows)


def least_tolerance(confidence: Floats, is_harm: Bools, risk: float, harmed_if_it_stays: Bools | None = None) -> float:
    """Return the least share of harm for which `certify` finds a threshold: what the strictest one may cost."""
    leaves = confidence >= THRESHOLDS[0]
    staying = 0 if harmed_if_it_stays is None else int(harmed_if_it_stays[~leaves].sum())
    return upper_bound(int(is_harm[leaves].sum()) + staying, len(confidence), risk)


def binomial_tail(most: int, rows: int, share: float) -> float:
    """Return how likely at most `most` of the rows are harmed where each is with a probability of `share`."""
    if most >= rows:
        return 1.0
    log_share, log_rest = math.log(share), math.log1p(-share)
    term, total = rows * log_rest, 0.0
    for harms in range(most + 1):
        total += math.exp(term)
        term += math.log(rows - harms) - math.log(harms + 1) + log_share - log_rest
    return min(1.0, total)


def upper_bound(harms: int, rows: int, risk: float) -> float:
    """Return the share of harm under which so few harms are as unlikely as the risk (Clopper and Pearson)."""
    if harms >= rows:
        return 1.0
    low, high = harms / rows, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(harms, rows, middle) > risk else (low, middle)
    return high


def least_rows(tolerance: float, risk: float) -> int:
    """Return how many rows a test needs that could pass at all: without any harm."""
    return math.ceil(math.log(risk) / math.log1p(-tolerance))

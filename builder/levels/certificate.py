"""Certificates: thresholds of which a statistical test says that answering early costs no more than was allowed.

Harm is a row that the full model has right and the early answer has wrong. The drop in accuracy is at most the share of
harm, so a bound of that share bounds the drop. Of a regression each row is harmed in part. Thresholds are tried in an
order that was fixed before, the strictest first, until the first one fails: however many were tried, an error needs the
first bad one to pass, so the risk of the whole is that of one test. Where a threshold has to pass two tests, it is bad
as soon as one of them should fail, and the risk stays the same.

Usage:
    certificate = certify(confidence, harm, tolerance=0.01, guarantee=Each(risk=0.1))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from builder.levels.guarantee import Guarantee

if TYPE_CHECKING:  # the manager checks targets without PyTorch
    from builder.construct.tasks.calibration import Bools, Floats

NUM_THRESHOLDS = 201
THRESHOLDS: tuple[float, ...] = tuple(
    1 - 0.0005 * 1000 ** (step / (NUM_THRESHOLDS - 1)) for step in range(NUM_THRESHOLDS)
)
"""From 0.9995 down to 0.5; fine near 1, where most rows are. A fine grid costs nothing."""


@dataclass(frozen=True)
class Certificate:
    """A threshold that has passed.

    Attributes:
        threshold: Least confidence of a row that is answered early.
        rows: Number of rows that it was tested on.
        harms: How many of them it harms, parts added up.
        bound: The least tolerance that the guarantee would have certified here.
        exit_share: Share of the rows that it answers early.
    """

    threshold: float
    rows: int
    harms: float
    bound: float
    exit_share: float


class Changes(NamedTuple):
    """What other answers to rows that stay change against the full ones: rows put right, and rows put wrong.

    Shape: `[N]` both
    """

    helped: Bools
    harmed: Bools

    def staying(self, confidence: Floats) -> npt.NDArray[np.int64]:
        """Return both numbers among the rows that stay once so many have left, the surest first: `[N + 1, 2]`."""
        order = np.argsort(-confidence, kind="stable")
        changed = np.stack(self, axis=1)[order].astype(np.int64)
        left = np.concatenate([np.zeros((1, 2), np.int64), changed.cumsum(axis=0)])
        staying: npt.NDArray[np.int64] = left[-1] - left
        return staying


class Threshold(NamedTuple):
    """A least confidence, the number of rows that would leave with it, and the harm that this would be."""

    least: float
    leaving: int
    harms: float


def certify(
    confidence: Floats,
    harm: Bools | Floats,
    tolerance: float,
    guarantee: Guarantee,
    harmed_if_it_stays: Bools | None = None,
    changes: Changes | None = None,
    first: float = THRESHOLDS[0],
) -> Certificate | None:
    """Find the lowest threshold that passes; None where the first one fails.

    Args:
        confidence: Of the early answers, `[N]`.
        harm: Whether answering a row early would be harm, or the part of it that would be, `[N]`.
        tolerance: The largest share of harm that is allowed.
        guarantee: What the share of harm is tested by.
        harmed_if_it_stays: Whether the full answer would be harm, `[N]`; by default none is.
        changes: What rows that stay are answered by in place of full answers has to be proven to be better; by default
            they are answered in full.
        first: The threshold that is tried first, chosen without these rows; by default the strictest one.
    """
    rows, staying = len(confidence), None if changes is None else changes.staying(confidence)
    passed: Threshold | None = None
    for each in thresholds(confidence, harm, harmed_if_it_stays, first):
        if not guarantee.holds(each.harms, rows, tolerance):
            break
        if staying is not None and not guarantee.proves_better(*staying[each.leaving].tolist()):
            break
        passed = each
    if passed is None:
        return None
    return Certificate(passed.least, rows, passed.harms, guarantee.bound(passed.harms, rows), passed.leaving / rows)


def thresholds(
    confidence: Floats,
    harm: Bools | Floats,
    harmed_if_it_stays: Bools | None = None,
    first: float = THRESHOLDS[0],
) -> Iterator[Threshold]:
    """Yield what each threshold would mean for these rows, from the first on; `certify` has the arguments."""
    order = np.argsort(-confidence, kind="stable")
    more, always = harm[order] + 0, 0
    if harmed_if_it_stays is not None:
        more, always = more - harmed_if_it_stays[order], int(harmed_if_it_stays.sum())
    descending, harms_up_to = -confidence[order], always + np.concatenate([[0], np.cumsum(more)])
    for least in THRESHOLDS[THRESHOLDS.index(first) :]:
        leaving = int(np.searchsorted(descending, -least, side="right"))
        yield Threshold(least, leaving, harms_up_to[leaving].item())


def least_tolerance(
    confidence: Floats,
    harm: Bools | Floats,
    guarantee: Guarantee,
    harmed_if_it_stays: Bools | None = None,
    changes: Changes | None = None,
    first: float = THRESHOLDS[0],
) -> float:
    """Return the least share of harm for which `certify` finds a threshold: what the first one may cost.

    It is 1, which is no tolerance, where the first one fails for its changes.
    """
    leaves = confidence >= first
    if changes is not None and not guarantee.proves_better(*(int(each[~leaves].sum()) for each in changes)):
        return 1.0
    staying = 0 if harmed_if_it_stays is None else int(harmed_if_it_stays[~leaves].sum())
    return guarantee.bound(harm[leaves].sum().item() + staying, len(confidence))

"""Certificates: thresholds of which a statistical test says that answering early costs no more than was allowed.

Harm is a row that the full model has right and the early answer has wrong, help one of which the opposite is true. The
drop in accuracy is the share of harm less that of help, so it is at most the share of harm; a guarantee bounds the one
or the other. Of a regression each row is harmed in part, and none is helped. Thresholds are tried in an order that was
fixed before, the strictest first, until the first one fails: however many were tried, an error needs the first bad one
to pass, so the risk of the whole is that of one test. Where a threshold has to pass two tests, it is bad as soon as one
of them should fail, and the risk stays the same.

Usage:
    certificate = certify(confidence, effect, tolerance=0.01, guarantee=Each(risk=0.1))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from builder.levels.guarantee import Balance, Guarantee

if TYPE_CHECKING:  # the manager checks targets without PyTorch
    from builder.construct.tasks.calibration import Bools, Floats

NUM_THRESHOLDS = 219
THRESHOLDS: tuple[float, ...] = tuple(1 - 0.0005 * 1000 ** (step / 200) for step in range(NUM_THRESHOLDS))
"""From 0.9995 down to 0.07, as an answer with many labels may be right and not sure at all; fine near 1, where most
rows are."""

Effect = npt.NDArray[Any]
"""Of each row, what an answer is against the full one: harm, or the part of it that is harm, above 0; help -1."""


@dataclass(frozen=True)
class Certificate:
    """A threshold that has passed.

    Attributes:
        threshold: Least confidence of a row that is answered early.
        rows: Number of rows that it was tested on.
        balance: How many of them it harms, parts added up, and how many it helps.
        bound: The least tolerance that the guarantee would have certified here.
        exit_share: Share of the rows that it answers early.
    """

    threshold: float
    rows: int
    balance: Balance
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
    """A least confidence, the number of rows that would leave with it, and what would become of all rows."""

    least: float
    leaving: int
    balance: Balance


def certify(
    confidence: Floats,
    effect: Effect,
    tolerance: float,
    guarantee: Guarantee,
    effect_if_it_stays: Effect | None = None,
    changes: Changes | None = None,
    first: float = THRESHOLDS[0],
) -> Certificate | None:
    """Find the lowest threshold that passes; None where the first one fails.

    Args:
        confidence: Of the early answers, `[N]`.
        effect: What answering a row early would be, `[N]`.
        tolerance: The largest share that may be lost.
        guarantee: What the share that is lost is tested by.
        effect_if_it_stays: What the answer to a row that goes on would be, `[N]`; by default it changes nothing.
        changes: What rows that stay are answered by in place of full answers has to be proven to be better; by default
            they are answered in full.
        first: The threshold that is tried first, chosen without these rows; by default the strictest one.
    """
    rows, staying = len(confidence), None if changes is None else changes.staying(confidence)
    passed: Threshold | None = None
    for each in thresholds(confidence, effect, effect_if_it_stays, first):
        if not guarantee.holds(each.balance, rows, tolerance):
            break
        if staying is not None and not guarantee.proves_better(*staying[each.leaving].tolist()):
            break
        passed = each
    if passed is None:
        return None
    return Certificate(passed.least, rows, passed.balance, guarantee.bound(passed.balance, rows), passed.leaving / rows)


def thresholds(
    confidence: Floats,
    effect: Effect,
    effect_if_it_stays: Effect | None = None,
    first: float = THRESHOLDS[0],
) -> Iterator[Threshold]:
    """Yield what each threshold would mean for these rows, from the first on; `certify` has the arguments."""
    order = np.argsort(-confidence, kind="stable")
    staying = np.zeros(len(order), np.int64) if effect_if_it_stays is None else effect_if_it_stays[order]
    harms, helps = (_summed(part(effect[order]), part(staying)) for part in (_harms, _helps))
    descending = -confidence[order]
    for least in THRESHOLDS[THRESHOLDS.index(first) :]:
        leaving = int(np.searchsorted(descending, -least, side="right"))
        yield Threshold(least, leaving, Balance(harms[leaving].item(), helps[leaving].item()))


def _harms(effect: Effect) -> Effect:
    return effect * (effect > 0)


def _helps(effect: Effect) -> Effect:
    return effect < 0


def _summed(leaving: Effect, staying: Effect) -> Effect:
    """Add up both, where the first rows leave and the others stay, by how many leave: `[N + 1]`."""
    summed: Effect = staying.sum() + np.concatenate([[0], np.cumsum(leaving + 0 - staying)])
    return summed


def least_tolerance(
    confidence: Floats,
    effect: Effect,
    guarantee: Guarantee,
    effect_if_it_stays: Effect | None = None,
    changes: Changes | None = None,
    first: float = THRESHOLDS[0],
) -> float:
    """Return the least tolerance for which `certify` finds a threshold: what the first one may cost.

    It is 1, which is no tolerance, where the first one fails for its changes.
    """
    leaves = confidence >= first
    if changes is not None and not guarantee.proves_better(*(int(each[~leaves].sum()) for each in changes)):
        return 1.0
    answered = effect * leaves if effect_if_it_stays is None else np.where(leaves, effect, effect_if_it_stays)
    return guarantee.bound(balance_of(answered), len(confidence))


def balance_of(effect: Effect) -> Balance:
    """Count what becomes of some rows."""
    return Balance(_harms(effect).sum().item(), int(_helps(effect).sum()))

"""The test of a drop by rows that are harmed less those that are put right."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import stats

from builder.levels.certificate import certify
from builder.levels.guarantee import Each, EachInParts, EachOnBalance, Fleet, Loss, difference_tail
from builder.levels.target import Target

RISK = 0.1


def _summed_tail(most: int, rows: int, share: float, changed: float) -> float:
    """The same by how many texts change, and how many of these are harmed."""
    numbers = np.arange(rows + 1)
    harmed = np.floor((numbers + most) / 2)
    of_changed = stats.binom.cdf(harmed, numbers, (changed + share) / (2 * changed))
    return float((stats.binom.pmf(numbers, rows, changed) * of_changed).sum())


@pytest.mark.parametrize("rows", [50, 1500, 4000])
@pytest.mark.parametrize(("share", "changed"), [(0.01, 0.01), (0.01, 0.03), (0.02, 0.5), (0.005, 1.0)])
def test_the_tail_of_a_difference_is_that_of_the_changes_summed(rows: int, share: float, changed: float) -> None:
    middle, deviation = round(rows * share), (rows * changed) ** 0.5
    for most in {-rows, rows, *(middle + round(step * deviation) for step in (-6, -3, -1, 0, 0.5, 2, 7))}:
        expected = _summed_tail(most, rows, share, changed)
        assert difference_tail(most, rows, share, changed) == pytest.approx(expected, abs=1e-10), most


@pytest.mark.parametrize("rows", [1200, 3000])
@pytest.mark.parametrize("changed", [0.01, 0.03, 0.1, 0.4])
def test_a_drop_above_the_tolerance_passes_no_more_often_than_the_risk(rows: int, changed: float) -> None:
    """The drop is hardly more than what is allowed, however many texts change."""
    seed = random.randrange(1 << 32)
    tolerance, drop, draws = 0.01, 0.010001, 600
    shares = ((changed + drop) / 2, max(0.0, (changed - drop) / 2))
    counts = np.random.default_rng(seed).multinomial(rows, (*shares, 1 - sum(shares)), draws).tolist()
    seen = {loss: EachOnBalance(RISK).holds(loss, rows, tolerance) for loss in {Loss(h, g) for h, g, _ in counts}}
    passed = sum(seen[Loss(h, g)] for h, g, _ in counts) / draws
    assert passed <= RISK + 2 * (RISK * (1 - RISK) / draws) ** 0.5, f"seed {seed}"


def test_what_is_put_right_makes_up_for_harm() -> None:
    balance, each = EachOnBalance(0.05), Each(0.05)
    assert balance.holds(Loss(13, 11), 1500, 0.01) and not each.holds(Loss(13, 11), 1500, 0.01)
    assert not balance.holds(Loss(13, 3), 1500, 0.01)
    assert not balance.holds(Loss(15, 0), 1500, 0.01)
    bounds = [balance.bound(Loss(20, helps), 2000) for helps in range(0, 40, 5)]
    assert bounds == sorted(bounds, reverse=True) and bounds[0] > bounds[-1] > 0
    assert balance.holds(Loss(20, 10), 2000, balance.bound(Loss(20, 10), 2000) + 1e-6)
    assert not balance.holds(Loss(20, 10), 2000, balance.bound(Loss(20, 10), 2000) - 1e-6)
    assert (balance.lost(Loss(5, 7)), each.lost(Loss(5, 7))) == (-2, 5)


def test_more_texts_leave_where_early_answers_are_as_good() -> None:
    rng = np.random.default_rng(3)
    confidence = 1 - 0.5 * rng.random(2400)
    draws = rng.random(2400)
    change = np.where(draws < 0.1 * (1 - confidence), 1, np.where(draws > 1 - 0.1 * (1 - confidence), -1, 0))
    found = [certify(confidence, change, 0.01, guarantee(0.05)) for guarantee in (EachOnBalance, Each)]
    assert found[0] is not None and found[1] is not None
    assert found[0].exit_share > found[1].exit_share + 0.1
    assert found[0].loss.helps > 0


def test_a_drop_is_tested_on_balance_where_texts_are_many() -> None:
    target = Target.of(max_drop=1)
    least = Each(target.risk).least_rows(0.01)
    assert type(target.tested(rows=2 * least)) is EachOnBalance
    assert type(target.tested(rows=2 * least - 1)) is Each
    assert type(target.tested(num_candidates=2, rows=2 * least)) is Each
    assert type(target.tested(in_parts=True, rows=10**6)) is EachInParts
    assert type(Target.of(agreement=0.98).tested(rows=10**6)) is Each
    assert type(Target.of(target_accuracy=0.9).tested(rows=10**6)) is Each
    assert type(Target.of(guarantee="fleet").tested(rows=10**6)) is Fleet

"""The test of a drop by rows that are harmed less those that are put right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep
from builder.levels.candidate import Candidate, Trial
from builder.levels.certificate import THRESHOLDS, certify
from builder.levels.guarantee import Balance, Each, EachInParts, EachOnBalance, Fleet, difference_tail
from builder.levels.paired_answers import Counted
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
    seen = {each: EachOnBalance(RISK).holds(each, rows, tolerance) for each in {Balance(h, g) for h, g, _ in counts}}
    passed = sum(seen[Balance(h, g)] for h, g, _ in counts) / draws
    assert passed <= RISK + 2 * (RISK * (1 - RISK) / draws) ** 0.5, f"seed {seed}"


def test_what_is_put_right_makes_up_for_harm() -> None:
    balance, each = EachOnBalance(0.05), Each(0.05)
    assert balance.holds(Balance(13, 11), 1500, 0.01) and not each.holds(Balance(13, 11), 1500, 0.01)
    assert not balance.holds(Balance(13, 3), 1500, 0.01)
    assert not balance.holds(Balance(15, 0), 1500, 0.01)
    bounds = [balance.bound(Balance(20, helps), 2000) for helps in range(0, 40, 5)]
    assert bounds == sorted(bounds, reverse=True) and bounds[0] > bounds[-1] > 0
    assert balance.holds(Balance(20, 10), 2000, balance.bound(Balance(20, 10), 2000) + 1e-6)
    assert not balance.holds(Balance(20, 10), 2000, balance.bound(Balance(20, 10), 2000) - 1e-6)
    assert (balance.lost(Balance(5, 7)), each.lost(Balance(5, 7))) == (-2, 5)


def test_more_texts_leave_where_early_answers_are_as_good() -> None:
    rng = np.random.default_rng(3)
    confidence = 1 - 0.5 * rng.random(2400)
    draws = rng.random(2400)
    effect = np.where(draws < 0.1 * (1 - confidence), 1, np.where(draws > 1 - 0.1 * (1 - confidence), -1, 0))
    found = [certify(confidence, effect, 0.01, guarantee(0.05)) for guarantee in (EachOnBalance, Each)]
    assert found[0] is not None and found[1] is not None
    assert found[0].exit_share > found[1].exit_share + 0.1
    assert found[0].balance.helps > 0


def test_a_drop_is_tested_on_balance_where_texts_are_many() -> None:
    target = Target.of(max_drop=1)
    least = Each(target.risk).least_rows(0.01)
    assert type(target.tested(rows=5 * least)) is EachOnBalance
    assert type(target.tested(rows=5 * least - 1)) is Each
    assert type(target.tested(num_candidates=4, rows=5 * least)) is EachOnBalance, "more candidates change no test"
    assert type(target.tested(in_parts=True, rows=10**6)) is EachInParts
    assert type(Target.of(agreement=0.98).tested(rows=10**6)) is Each
    assert type(Target.of(target_accuracy=0.9).tested(rows=10**6)) is Each
    assert type(Target.of(guarantee="fleet").tested(rows=10**6)) is Fleet


@pytest.mark.parametrize(("harms", "helps", "rows"), [(0, 0, 1200), (13, 11, 1500), (40, 30, 3000), (200, 190, 4000)])
def test_no_share_of_changes_up_to_its_bound_is_likelier_than_what_is_said(harms: int, helps: int, rows: int) -> None:
    most = max(0.01, float(stats.beta.ppf(1 - 0.1 * RISK, harms + helps + 1, rows - harms - helps)))
    worst = max(_summed_tail(harms - helps, rows, 0.01, changed) for changed in np.linspace(0.01, most, 60).tolist())
    said = EachOnBalance(RISK).likelihood(Balance(harms, helps), rows, 0.01)
    assert said - 0.1 * RISK == pytest.approx(worst, rel=2e-3, abs=1e-9)


class Sure:
    """Early answers that are all as sure as can be, so that the first threshold has all that is lost."""

    in_parts, ensemble, first_threshold = False, None, THRESHOLDS[0]

    def __init__(self, effect: np.ndarray) -> None:
        self._effect = effect

    def __len__(self) -> int:
        return len(self._effect)

    def temperatures(self, rows: np.ndarray) -> tuple[float, float]:
        return 1.0, 1.0

    def confidence(self, temperature: float) -> np.ndarray:
        return np.ones(len(self))

    def counted(self, target: Target) -> Counted:
        return Counted(self._effect)


def _candidate(answers: Any, tolerance: float) -> Candidate:
    rows = np.arange(len(answers))
    trial = Trial(Target("max-drop", tolerance), num_candidates=2, fits=rows[:0], certifies=rows, num_layers=6)
    return Candidate(EarlyStep(1, Head(torch.zeros(2, 4), torch.zeros(2)), 1.0, 1.0), answers, trial)


def test_what_texts_could_certify_they_certify_as_a_target() -> None:
    """A looser target may be tested otherwise than the declared one."""
    seed = random.randrange(1 << 32)
    rng, offered = np.random.default_rng(seed), 0
    for _ in range(80):
        effect = np.zeros(int(rng.integers(240, 1400)))
        harms, helps = int(rng.integers(0, 8)), int(rng.integers(0, 3))
        effect[:harms], effect[harms : harms + helps] = 1, -1
        candidate = _candidate(Sure(effect), tolerance=0.01)
        if candidate.certificate is None:
            offered += 1
            again = _candidate(Sure(effect), candidate.least_tolerance)
            assert again.certificate is not None, (seed, len(effect), harms, helps)
    assert offered > 10, f"seed {seed}"

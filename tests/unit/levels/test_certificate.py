"""Certificates: the binomial test against SciPy's, and that few of them promise too much."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import stats

from builder.levels.certificate import THRESHOLDS, binomial_tail, certify, least_rows, least_tolerance, upper_bound

RISK = 0.1


@pytest.mark.parametrize("rows", [1, 17, 408, 3000, 10_000])
@pytest.mark.parametrize("share", [1e-4, 0.005, 0.01, 0.3, 0.9])
def test_the_tail_is_that_of_the_binomial_distribution(rows: int, share: float) -> None:
    for most in {0, 1, rows // 100, rows // 3, rows - 1, rows}:
        assert binomial_tail(most, rows, share) == pytest.approx(stats.binom.cdf(most, rows, share), abs=1e-10)


@pytest.mark.parametrize(("harms", "rows"), [(0, 204), (1, 436), (9, 1500), (86, 10_000), (40, 40)])
def test_the_bound_is_clopper_and_pearson_s(harms: int, rows: int) -> None:
    expected = 1.0 if harms == rows else stats.beta.ppf(1 - RISK, harms + 1, rows - harms)
    assert upper_bound(harms, rows, RISK) == pytest.approx(expected, abs=1e-9)


def test_bounds_grow_with_harms_and_fall_with_rows_and_risk() -> None:
    bounds = [upper_bound(harms, 500, RISK) for harms in range(50)]
    assert bounds == sorted(bounds)
    assert upper_bound(3, 500, RISK) > upper_bound(3, 501, RISK) > upper_bound(3, 501, 2 * RISK)


@pytest.mark.parametrize(("tolerance", "rows"), [(0.005, 460), (0.01, 230), (0.02, 114)])
def test_so_many_rows_are_needed(tolerance: float, rows: int) -> None:
    assert least_rows(tolerance, RISK) == rows
    sure = np.full(rows, 0.99999)
    assert certify(sure, np.zeros(rows, bool), tolerance, RISK) is not None
    assert certify(sure[1:], np.zeros(rows - 1, bool), tolerance, RISK) is None


def test_the_last_threshold_before_the_first_that_fails_is_taken() -> None:
    """Later ones that would pass again do not count, for the order was fixed before."""
    confidence = np.concatenate([np.full(600, 0.9999), np.full(50, 0.9), np.full(350, 0.6)])
    is_harm = np.concatenate([np.zeros(600, bool), np.ones(50, bool), np.zeros(350, bool)])
    found = certify(confidence, is_harm, 0.01, RISK)
    assert found is not None
    assert found.threshold > 0.9 and found.exit_share == 0.6 and found.harms == 0
    following = THRESHOLDS[THRESHOLDS.index(found.threshold) + 1]
    assert following <= 0.9


@pytest.mark.parametrize("harmed_if_it_stays", [None, np.random.default_rng(2).random(400) < 0.1])
def test_the_least_tolerance_is_the_least_that_passes(harmed_if_it_stays: np.ndarray | None) -> None:
    rng = np.random.default_rng(1)
    confidence, is_harm = np.where(rng.random(400) < 0.5, 0.9999, 0.7), rng.random(400) < 0.2
    least = least_tolerance(confidence, is_harm, RISK, harmed_if_it_stays)
    assert certify(confidence, is_harm, least + 1e-6, RISK, harmed_if_it_stays) is not None
    assert certify(confidence, is_harm, least - 1e-6, RISK, harmed_if_it_stays) is None


def test_equal_confidences_leave_together() -> None:
    confidence = np.full(1000, THRESHOLDS[10])
    found = certify(confidence, np.zeros(1000, bool), 0.01, RISK)
    assert found is not None and found.exit_share == 1.0


def test_a_tenant_in_ten_may_exceed_its_tolerance_and_no_more() -> None:
    """Tenants are drawn, whose true harm at each threshold is known."""
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    tenants, too_many = 500, 0
    for _ in range(tenants):
        rows, spread, harmful = int(rng.choice([250, 500, 1500])), rng.uniform(1, 6), rng.uniform(0, 0.6)

        def drawn(count: int, spread: float = spread, harmful: float = harmful) -> tuple[np.ndarray, np.ndarray]:
            confidence = 1 - 0.5 * rng.random(count) ** spread
            return confidence, rng.random(count) < harmful * (1 - confidence)

        found = certify(*drawn(rows), 0.01, RISK)
        if found is not None:
            confidence, is_harm = drawn(20_000)
            too_many += bool((is_harm & (confidence >= found.threshold)).mean() > 0.01)
    deviation = (RISK * (1 - RISK) / tenants) ** 0.5
    assert too_many / tenants <= RISK + 2 * deviation, f"seed {seed}"

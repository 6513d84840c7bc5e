"""Certificates: the binomial test against SciPy's, and that few of them promise too much."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import stats

from builder.levels.certificate import THRESHOLDS, certify, least_tolerance
from builder.levels.guarantee import Balance, Each, EachInParts, Fleet, Guarantee, binomial_tail
from builder.levels.target import Target
from builder.requests.levels import GuaranteeName

RISK = 0.1
EACH = Each(RISK)


@pytest.mark.parametrize("rows", [1, 17, 408, 3000, 10_000])
@pytest.mark.parametrize("share", [1e-4, 0.005, 0.01, 0.3, 0.9])
def test_the_tail_is_that_of_the_binomial_distribution(rows: int, share: float) -> None:
    for most in {0, 1, rows // 100, rows // 3, rows - 1, rows}:
        assert binomial_tail(most, rows, share) == pytest.approx(stats.binom.cdf(most, rows, share), abs=1e-10)


@pytest.mark.parametrize(("harms", "rows"), [(0, 204), (1, 436), (9, 1500), (86, 10_000), (40, 40)])
def test_the_bound_is_clopper_and_pearson_s(harms: int, rows: int) -> None:
    expected = 1.0 if harms == rows else stats.beta.ppf(1 - RISK, harms + 1, rows - harms)
    assert EACH.bound(Balance(harms), rows) == pytest.approx(expected, abs=1e-9)


def test_bounds_grow_with_harms_and_fall_with_rows_and_risk() -> None:
    bounds = [EACH.bound(Balance(harms), 500) for harms in range(50)]
    assert bounds == sorted(bounds)
    assert EACH.bound(Balance(3), 500) > EACH.bound(Balance(3), 501) > Each(2 * RISK).bound(Balance(3), 501)


@pytest.mark.parametrize(
    ("guarantee", "tolerance", "rows"),
    [
        *((EACH, tolerance, rows) for tolerance, rows in ((0.005, 460), (0.01, 230), (0.02, 114))),
        *((Fleet(), tolerance, rows) for tolerance, rows in ((0.005, 199), (0.01, 99), (0.02, 49), (0.15, 6))),
        (Target.of().tested(num_candidates=2), 0.01, 299),
        (Fleet(2), 0.01, 199),
    ],
)
def test_so_many_rows_are_needed(guarantee: Guarantee, tolerance: float, rows: int) -> None:
    assert guarantee.least_rows(tolerance) == rows
    sure = np.full(rows, 0.99999)
    assert certify(sure, np.zeros(rows, bool), tolerance, guarantee) is not None
    assert certify(sure[1:], np.zeros(rows - 1, bool), tolerance, guarantee) is None


def test_the_last_threshold_before_the_first_that_fails_is_taken() -> None:
    """Later ones that would pass again do not count, for the order was fixed before."""
    confidence = np.concatenate([np.full(600, 0.9999), np.full(50, 0.9), np.full(350, 0.6)])
    is_harm = np.concatenate([np.zeros(600, bool), np.ones(50, bool), np.zeros(350, bool)])
    found = certify(confidence, is_harm, 0.01, EACH)
    assert found is not None
    assert found.threshold > 0.9 and found.exit_share == 0.6 and found.balance == (0, 0)
    following = THRESHOLDS[THRESHOLDS.index(found.threshold) + 1]
    assert following <= 0.9


@pytest.mark.parametrize("guarantee", [EACH, Fleet()])
@pytest.mark.parametrize("harmed_if_it_stays", [None, np.random.default_rng(2).random(400) < 0.1])
def test_the_least_tolerance_is_the_least_that_passes(
    harmed_if_it_stays: np.ndarray | None, guarantee: Guarantee
) -> None:
    rng = np.random.default_rng(1)
    confidence, is_harm = np.where(rng.random(400) < 0.5, 0.9999, 0.7), rng.random(400) < 0.2
    least = least_tolerance(confidence, is_harm, guarantee, harmed_if_it_stays)
    assert certify(confidence, is_harm, least + 1e-6, guarantee, harmed_if_it_stays) is not None
    assert certify(confidence, is_harm, least - 1e-6, guarantee, harmed_if_it_stays) is None


def test_equal_confidences_leave_together() -> None:
    confidence = np.full(1000, THRESHOLDS[10])
    found = certify(confidence, np.zeros(1000, bool), 0.01, EACH)
    assert found is not None and found.exit_share == 1.0


class Drawn:
    """A tenant whose true harm at each threshold is known."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._spread, self._harmful = rng, rng.uniform(1, 6), rng.uniform(0, 0.6)

    def rows(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        confidence = 1 - 0.5 * self._rng.random(count) ** self._spread
        return confidence, self._rng.random(count) < self._harmful * (1 - confidence)

    def harm(self, threshold: float) -> float:
        confidence, is_harm = self.rows(20_000)
        return float((is_harm & (confidence >= threshold)).mean())


def test_a_tenant_in_ten_may_exceed_its_tolerance_and_no_more() -> None:
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    tenants, too_many = 500, 0
    for _ in range(tenants):
        tenant = Drawn(rng)
        found = certify(*tenant.rows(int(rng.choice([250, 500, 1500]))), 0.01, EACH)
        too_many += found is not None and tenant.harm(found.threshold) > 0.01
    deviation = (RISK * (1 - RISK) / tenants) ** 0.5
    assert too_many / tenants <= RISK + 2 * deviation, f"seed {seed}"


def test_a_fleet_keeps_its_tolerance_in_the_mean_from_fewer_rows() -> None:
    """Each tenant has too few rows to prove anything of itself; many exceed the tolerance, and the mean does not."""
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    harms = []
    for _ in range(500):
        tenant = Drawn(rng)
        rows = tenant.rows(150)
        assert certify(*rows, 0.01, EACH) is None
        found = certify(*rows, 0.01, Fleet())
        harms.append(0.0 if found is None else tenant.harm(found.threshold))
    assert np.mean(harms) <= 0.01 + 2 * np.std(harms) / len(harms) ** 0.5, f"seed {seed}"
    assert np.mean(np.array(harms) > 0.01) > RISK, "no weaker than the promise of each"


@pytest.mark.parametrize(("lost", "rows"), [(0.0, 300), (2.3, 300), (40.0, 300), (9.99, 3000)])
def test_parts_that_are_lost_are_bounded_by_hoeffding_and_bentkus(lost: float, rows: int) -> None:
    """Their likelihood, written in another way; its bound is no stricter than that of rows, and near it."""

    def likelihood(share: float) -> float:
        entropy = stats.entropy([lost / rows, 1 - lost / rows], [share, 1 - share])
        return min(np.exp(-rows * entropy), np.e * stats.binom.cdf(np.ceil(lost), rows, share))

    balance = Balance(lost)
    bound = EachInParts(RISK).bound(balance, rows)
    assert likelihood(bound) == pytest.approx(RISK, rel=1e-6)
    assert EachInParts(RISK).holds(balance, rows, bound + 1e-6)
    assert not EachInParts(RISK).holds(balance, rows, bound - 1e-6)
    assert EACH.bound(Balance(np.ceil(lost)), rows) - 1e-9 <= bound <= 1.4 * EACH.bound(Balance(np.ceil(lost)), rows)
    assert EachInParts(RISK).least_rows(0.01) == EACH.least_rows(0.01) == 230
    assert not EachInParts(RISK).holds(balance, rows, lost / rows)


def test_parts_that_are_lost_exceed_the_tolerance_in_a_tenant_in_ten_at_most() -> None:
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    tenants, too_many, found_any = 300, 0, 0
    for _ in range(tenants):
        spread, lossy = rng.uniform(1, 6), rng.uniform(0, 1)

        def drawn(count: int, spread: float = spread, lossy: float = lossy) -> tuple[np.ndarray, np.ndarray]:
            confidence = 1 - 0.5 * rng.random(count) ** spread
            return confidence, np.clip(lossy * np.abs(rng.normal(size=count)) * (1 - confidence), 0, 1)

        found = certify(*drawn(int(rng.choice([250, 1000]))), 0.02, EachInParts(RISK))
        found_any += found is not None
        if found is not None:
            confidence, loss = drawn(20_000)
            too_many += bool(loss[confidence >= found.threshold].sum() / 20_000 > 0.02)
    deviation = (RISK * (1 - RISK) / tenants) ** 0.5
    assert found_any > tenants / 2 and too_many / tenants <= RISK + 2 * deviation, f"seed {seed}"


@pytest.mark.parametrize("kind", ["each", "fleet"])
def test_the_better_of_two_candidates_promises_no_more(kind: GuaranteeName) -> None:
    """Both have the same texts, of which the one that answers more early is taken."""
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    guarantee, harms = Target.of(guarantee=kind).tested(num_candidates=2), []
    for _ in range(400):
        tenants = [Drawn(rng), Drawn(rng)]
        found = [(certify(*tenant.rows(400), 0.01, guarantee), tenant) for tenant in tenants]
        passed = [(each.exit_share, each.threshold, tenant) for each, tenant in found if each is not None]
        chosen = max(passed, key=lambda one: one[0], default=None)
        harms.append(0.0 if chosen is None else chosen[2].harm(chosen[1]))
    if kind == "fleet":
        assert np.mean(harms) <= 0.01 + 2 * np.std(harms) / len(harms) ** 0.5, f"seed {seed}"
    else:
        deviation = (RISK * (1 - RISK) / len(harms)) ** 0.5
        assert np.mean(np.array(harms) > 0.01) <= RISK + 2 * deviation, f"seed {seed}"

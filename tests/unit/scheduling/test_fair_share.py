"""Which rows are within their tenants' shares."""

from __future__ import annotations

import random

import numpy as np
import pytest

from backends.scheduling.fair_share import FairShare, ShareBuckets
from backends.scheduling.settings import ShareSettings


def test_a_tenant_that_requests_its_share_is_within_it_and_an_overload_is_not() -> None:
    buckets = ShareBuckets(ShareSettings({"heavy": 3.0}, burst_us=10_000))
    within = {"modest": 0, "heavy": 0, "overload": 0}
    for now_us in range(0, 10_000_000, 1000):
        for tenant, cost_us in (("modest", 150.0), ("heavy", 500.0), ("overload", 2000.0)):
            if buckets.allows(tenant, now_us):
                buckets.use(tenant, cost_us)
                within[tenant] += 1
    assert within["modest"] == within["heavy"] == 10_000
    # A fifth of the time and a bit, and the burst.
    assert within["overload"] * 2000.0 == pytest.approx(1.25 * 10_000_000 / 5 + 10_000, rel=0.02)


def test_chance_takes_no_tenant_beyond_a_share_however_few_rows_it_is(seed: int) -> None:
    """Rows of a few to a hundred tokens, of which a twenty-first of the device computes six a second."""
    rng = np.random.default_rng(seed)
    buckets = ShareBuckets(ShareSettings())
    tenants = [f"t{number}" for number in range(20)]
    rate_per_s, row_us = 6.0, 1e6 / 21 / 6.0
    at_us = np.sort(rng.uniform(0, 60e6, size=round(20 * rate_per_s * 60))).astype(int).tolist()
    costs_us = row_us * np.clip(rng.normal(20, 20, len(at_us)), 3, 100) / 23.5
    within = beyond = 0
    for now_us, cost_us, tenant in zip(at_us, costs_us.tolist(), rng.choice(tenants, len(at_us)), strict=True):
        for _ in range(3):
            if buckets.allows("overload", now_us):
                buckets.use("overload", cost_us)
        if buckets.allows(tenant, now_us):
            buckets.use(tenant, cost_us)
            within += 1
        else:
            beyond += 1
    assert beyond <= 0.01 * within, f"seed {seed}: {beyond} rows of {within + beyond}"
    # The last gap between two arrivals may have let the overload back in for a row or two.
    while buckets.allows("overload", at_us[-1]):
        buckets.use("overload", row_us)
    assert "overload" in buckets.most_beyond(at_us[-1], 8), f"seed {seed}"


def test_a_tenant_that_pauses_after_a_burst_still_owes_what_it_has_used() -> None:
    """Bursts of what chance allows, each after a second of silence, beside twenty tenants that keep to their shares."""
    buckets = ShareBuckets(ShareSettings(burst_us=0))
    row_us, used_us = 6_000.0, 0.0
    for now_us in range(0, 60_000_000, 10_000):
        for number in range(20):
            if now_us // 10_000 % 20 == number and buckets.allows(f"t{number}", now_us):
                buckets.use(f"t{number}", row_us)
        if now_us % 1_010_000 == 0:
            for _ in range(33):
                if buckets.allows("pulsing", now_us):
                    buckets.use("pulsing", row_us)
                    used_us += row_us
    # The first burst, and from then on a share of a twenty-first and a bit.
    assert used_us <= 33 * row_us + 1.3 * 60_000_000 / 20


def test_rows_that_are_dropped_while_their_tenant_is_silent_are_not_owed() -> None:
    buckets = ShareBuckets(ShareSettings(burst_us=10_000))
    for tenant in ("gone", "other"):
        assert buckets.allows(tenant, 0)
    buckets.use("gone", 5_000_000.0)
    assert buckets.allows("other", 2_000_000)
    buckets.charge("gone", -5_000_000.0)
    assert buckets.allows("gone", 2_000_001)


def test_a_small_weight_makes_a_small_burst() -> None:
    buckets = ShareBuckets(ShareSettings({"small": 0.1}, burst_us=0))
    for _ in range(500):  # so that it is known what a row costs
        buckets.allows("before", 0)
        buckets.use("before", 6_000.0)
    within = {"small": 0, "other": 0}
    for _ in range(100):
        for tenant in within:
            if buckets.allows(tenant, 1_000):
                buckets.use(tenant, 6_000.0)
                within[tenant] += 1
    assert within["small"] <= 5 < 30 <= within["other"]


def test_a_tenant_alone_has_no_share_to_exceed() -> None:
    buckets = ShareBuckets(ShareSettings(burst_us=10_000))
    for now_us in range(0, 1_000_000, 1000):
        assert buckets.allows("alone", now_us)
        buckets.use("alone", 5000.0)
    assert buckets.allows("other", 1_000_000)
    assert not buckets.allows("alone", 1_000_001), "now there is somebody"
    assert buckets.allows("alone", 3_000_000), "who is gone after a while"


def test_a_tenant_alone_has_none_whatever_the_weights_of_those_before_it(seed: int) -> None:
    rng = random.Random(seed)
    weights = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.7}
    buckets = ShareBuckets(ShareSettings(weights, burst_us=10_000))
    for now_us in range(0, 20_000_000, 100_000):
        buckets.allows(rng.choice(list(weights)), now_us)
    alone = rng.choice(list(weights))
    for now_us in range(30_000_000, 31_000_000, 1000):
        assert buckets.allows(alone, now_us), f"seed {seed}"
        buckets.use(alone, 5000.0)
    assert not buckets.most_beyond(31_000_000, 8)


def test_a_tenant_that_is_gone_is_forgotten() -> None:
    buckets = ShareBuckets(ShareSettings())
    for number in range(5000):
        buckets.allows(f"t{number}", 1000 * number)
    assert len(buckets._used_us) == len(buckets._requested_us) <= 1001
    assert buckets._weights == pytest.approx(len(buckets._used_us))


def test_a_weight_that_changes_counts_from_the_next_row_on() -> None:
    weights = {"acme": 1.0}
    shares = FairShare(ShareSettings(weights, burst_us=0))
    for tenant in ("acme", "globex", "acme"):
        shares.enter(tenant, 100.0)
    weights["acme"] = 3.0
    assert shares.share_of("acme") == 0.5
    shares.enter("acme", 100.0)
    assert shares.share_of("acme") == 0.75
    weights.pop("acme")
    for _ in range(3):
        shares.leave("acme")
    assert shares.share_of("globex") == 1.0
    shares.leave("globex")
    assert shares._weights == 0.0


def test_weights_that_change_leave_no_rest_in_the_buckets(seed: int) -> None:
    rng, weights = random.Random(seed), {"a": 1.0, "b": 2.0}
    buckets = ShareBuckets(ShareSettings(weights, burst_us=10_000))
    for now_us in range(0, 5_000_000, 10_000):
        buckets.allows(rng.choice("abc"), now_us)
        weights[rng.choice("abc")] = rng.choice([0.5, 1.0, 7.0])
    buckets.allows("d", 60_000_000)
    assert buckets._weights == pytest.approx(1.0)

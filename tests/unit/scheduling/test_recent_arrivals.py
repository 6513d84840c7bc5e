"""What has arrived lately, told from the first tenth of a second on, and anew after a pause."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import numpy as np
import pytest

from backends.scheduling.arrivals import KindRates, TenantWork
from backends.scheduling.order import NOTHING, Load

_MEMORY_US = 500_000


def test_steady_rates_are_known_soon_and_after_a_pause_anew() -> None:
    rates = KindRates(3)
    rates.restart(10_000_000)
    for number in range(401):
        now_us = 10_000_000 + 1000 * number
        rates.add(number % 2, Load(1.0, 20.0, 500.0), now_us)
        if number > 200:
            assert rates.during(1e6, now_us).work_us == pytest.approx(5e5, rel=0.05)
    during = rates.during(np.array([1e6, 0.0, 1e6]), now_us)
    assert during.rows == pytest.approx(500, rel=0.05)
    assert during.tokens == pytest.approx(10_000, rel=0.05)
    assert rates.during(1e6, now_us).rows == pytest.approx(1000, rel=0.05)
    rates.restart(now_us)
    assert rates.during(1e6, now_us) == NOTHING


@pytest.mark.parametrize("pause_us", [0, 600_000, 60_000_000])
def test_the_part_of_others_is_known_after_a_tenth_of_a_second(pause_us: int) -> None:
    work = TenantWork()
    for number in range(2000):
        work.add("before", 900.0, 1000 * number)
    for number in range(401):
        now_us = 2_000_000 + pause_us + 1000 * number
        work.add(f"t{number % 10}", 300.0, now_us)
        work.add("acme", 100.0, now_us)
        if pause_us and number > 110:
            assert work.of_others("acme", now_us) == pytest.approx(0.3, rel=0.05), number
            assert work.of_others("newcomer", now_us) == pytest.approx(0.4, rel=0.05), number
    if not pause_us:
        fading = math.exp(-0.8)
        assert work.of_others("acme", now_us) == pytest.approx(0.9 * fading + 0.3 * (1 - fading), rel=0.05)


def test_what_comes_at_one_moment_is_no_rate() -> None:
    work = TenantWork()
    for number in range(20):
        work.add(f"t{number}", 4_000.0, 7_000_000)
    assert work.of_others("acme", 7_000_000) == pytest.approx(0.08 / 0.1, rel=0.2)


def test_thousands_of_tenants_are_told_apart_and_forgotten() -> None:
    """Against all that was ever added, weighed anew each time."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    work, added = TenantWork(), defaultdict[str, list[tuple[float, int]]](list)
    now_us = 0
    for number in range(20_000):
        now_us += rng.randrange(2_000)
        tenant, work_us = f"t{number // 2 + rng.randrange(1_500)}", rng.uniform(1, 1_000)
        work.add(tenant, work_us, now_us)
        added[tenant].append((work_us, now_us))
        if number % 1_000 == 999:
            left = {
                name: sum(each_us * math.exp((at_us - now_us) / _MEMORY_US) for each_us, at_us in each)
                for name, each in added.items()
            }
            for asked in (tenant, "newcomer"):
                expected = (sum(left.values()) - left.get(asked, 0.0)) / (
                    _MEMORY_US * (1 - math.exp(-now_us / _MEMORY_US))
                )
                assert work.of_others(asked, now_us) == pytest.approx(expected, rel=1e-3), f"seed {seed}"
    assert len(work._sums) < 0.7 * len(added), f"seed {seed}"

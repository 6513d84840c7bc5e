"""The columns of tenants' virtual ends, against a dictionary."""

from __future__ import annotations

import random

import pytest

from backends.scheduling.virtual_ends import VirtualEnds


def test_thousands_of_tenants_come_and_are_forgotten() -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    ends, expected = VirtualEnds(), dict[str, tuple[float, float]]()
    now_us = forgotten = 0
    for number in range(9_000):
        now_us += rng.randrange(1_000)
        tenant = f"t{number // 3 + rng.randrange(2_000)}"
        expected[tenant] = now_us + rng.uniform(0, 600_000), rng.choice([0.5, 1.0, 3.0])
        ends.put(tenant, *expected[tenant])
        if number % 3 == 0:
            moved, by_us = rng.choice(list(expected)), rng.uniform(-1_000, 1_000)
            if moved in ends:
                ends.move(moved, by_us)
                expected[moved] = expected[moved][0] + by_us, expected[moved][1]
        ends.forget_until(now_us)
        if number % 500 == 499:
            left = {name: end_us for name, (end_us, _) in expected.items() if end_us > now_us}
            assert ends.after(now_us) == pytest.approx(left), f"seed {seed}"
            assert all(ends.get(name, 0.0) == pytest.approx(end_us) for name, end_us in left.items()), f"seed {seed}"
            forgotten = sum(name not in ends for name in expected)
            until_us, weights = now_us + 300_000, 10_000.0
            of_known = sum(
                weight * (until_us - min(end_us, until_us)) for end_us, weight in expected.values() if end_us > now_us
            )
            others = weights - sum(weight for end_us, weight in expected.values() if end_us > now_us)
            room_us = ends.room_us(now_us, until_us, weights)
            assert room_us == pytest.approx(others * (until_us - now_us) + of_known), f"seed {seed}"
    assert forgotten > 2_000, f"seed {seed}"

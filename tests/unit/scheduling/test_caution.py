"""Broken promises make predictions longer, kept ones shorter again."""

from __future__ import annotations

import numpy as np
import pytest

from backends.scheduling.caution import Caution


def test_it_settles_where_one_promise_of_two_hundred_is_broken(seed: int) -> None:
    """What a job takes over its prediction is random; it was promised if the factor covers it."""
    chance = np.random.default_rng(seed)
    caution = Caution(1.25)
    broken = 0
    for number in range(40_000):
        is_broken = chance.lognormal(0.0, 0.2) > caution.factor
        caution.broken(1) if is_broken else caution.kept(1)
        broken += is_broken and number >= 10_000
    assert broken / 30_000 == pytest.approx(0.005, rel=0.25), f"seed {seed}"


def test_it_stays_within_bounds() -> None:
    caution = Caution(1.25)
    caution.kept(1_000)
    assert caution.factor == 1.25
    caution.broken(1_000_000)
    assert caution.factor == pytest.approx(2.0)
    caution.rest()
    assert caution.factor == 1.25
    caution.broken(1_000)
    caution.kept(15_000)
    assert caution.factor == pytest.approx(1.25)


def test_a_crowd_begins_with_what_the_last_one_ended_with() -> None:
    caution = Caution(1.25)
    caution.crowd(0)
    caution.broken(40)
    caution.kept(2_000)
    ended_with = caution.factor
    assert ended_with == pytest.approx(1.25 + 0.4 - 0.1)
    caution.rest()
    caution.broken(1)
    assert caution.factor == pytest.approx(1.26), "no crowd"
    caution.crowd(1_000)
    assert caution.factor == pytest.approx(ended_with)
    caution.broken(30)
    caution.rest()
    caution.crowd(2_000)
    assert caution.factor == pytest.approx(ended_with + 0.3)
    caution.rest()
    caution.crowd(600_002_000)
    assert caution.factor == pytest.approx(1.25 + (ended_with + 0.3 - 1.25) / 2), "ten minutes later"

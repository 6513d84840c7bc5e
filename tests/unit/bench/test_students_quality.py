"""`bench.students_quality`: its figures, and the sets that students are compared with; no task is tried here."""

from __future__ import annotations

import numpy as np
import pytest

from bench.students_quality import Measured, Trials, figures_of
from bench.tasks.outcome import Outcome


def outcome(points: float) -> Outcome:
    return Outcome("accuracy", points, points, 1, np.array([[points, 100.0]]))


def measured(*points: float, best: int = 1) -> Measured:
    return Measured(tuple(map(outcome, points)), best)


def test_figures_are_shares_of_dedicated_models_by_task() -> None:
    kinds = ("exits", "bagged", "boosted")
    beside = dict(zip(kinds, (measured(70), measured(60, 75), measured(79)), strict=True))
    found = figures_of(
        [
            Trials("one", 1, outcome(80), outcome(80), measured(72, 76, best=2), beside),
            Trials("one", 2, outcome(80), outcome(80), measured(76, 74), {}),
            Trials("two", 1, outcome(50), outcome(45), measured(40, 40), beside),
        ]
    )
    assert found["share_1"] == pytest.approx((92.5 + 80) / 2)
    assert found["share_best"] == pytest.approx((95 + 80) / 2) and found["worst_share"] == 80
    assert found["share_hplm"] == pytest.approx(95) and found["best_minus_1"] == pytest.approx(1.0)
    differences = [found[f"minus_{kind}"] for kind in kinds]
    assert differences == pytest.approx([(6 - 30) / 2, (1 - 35) / 2, (-3 - 39) / 2])
    without = figures_of([Trials("one", 1, outcome(80), outcome(80), measured(72), {})])
    assert not any(name.startswith("minus") for name in without)


def test_a_trial_is_kept_as_it_was() -> None:
    kept, one = measured(72, 76, best=2), Measured.from_json(measured(72, 76, best=2).to_json())
    assert (one.of_one, one.of_best, one.of_all, one.best) == (72, 76, 76, 2)
    np.testing.assert_array_equal(one.outcomes[1].terms, kept.outcomes[1].terms)

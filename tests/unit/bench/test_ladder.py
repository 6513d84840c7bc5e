"""`bench.ladder`: thresholds that a share of texts reaches, and what the figures are made of."""

from __future__ import annotations

import numpy as np
import pytest

from bench.ladder import Taken, figures_of, threshold_of
from bench.ladder import ladder as bench_ladder


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_the_share_of_the_texts_reaches_the_threshold(share: float) -> None:
    confidences = np.random.default_rng(3).uniform(0.34, 0.99, size=20).tolist()
    threshold = threshold_of(confidences, share)
    assert sum(each >= threshold for each in confidences) == round(share * 20)


def test_ratios_are_medians_of_those_within_a_turn() -> None:
    taken = Taken({"ladder": [30.0, 33.0, 60.0], "hplm": [20.0, 20.0, 20.0], "dedicated": [10.0, 11.0, 10.0]}, 0.49)
    found = figures_of(taken)
    assert found["ladder_over_dedicated_16"] == pytest.approx(3)
    assert found["hplm_over_dedicated_16"] == pytest.approx(2)
    assert found["ladder_over_hplm_16"] == pytest.approx(1.65)
    assert found["left_early_share"] == 0.49


def test_a_share_is_between_0_and_1() -> None:
    with pytest.raises(SystemExit, match=r"bench\.ladder: --share is between 0 and 1, not 1\.5"):
        bench_ladder.main(["--quick", "--share", "1.5"])

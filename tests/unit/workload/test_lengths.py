from __future__ import annotations

import numpy as np
import pytest

from workload.errors import WorkloadError
from workload.lengths import EmpiricalLengths, FixedLengths, NormalLengths, TraceLengths


def test_narrow_lengths_have_the_mean_and_deviation_they_were_told(seed: int) -> None:
    drawn = NormalLengths(standard_deviation=20**0.5).draw(50_000, np.random.default_rng(seed))
    assert drawn.dtype == np.int64
    assert drawn.mean() == pytest.approx(20, abs=0.15)
    assert drawn.std() == pytest.approx(20**0.5, rel=0.03)


def test_wide_lengths_pile_up_at_the_limits(seed: int) -> None:
    drawn = NormalLengths(standard_deviation=20).draw(50_000, np.random.default_rng(seed))
    assert drawn.min() == 3
    assert drawn.max() <= 100
    assert np.mean(drawn == 3) == pytest.approx(0.19, abs=0.02)  # the share of the normal below 3.5 with 0.5 rounded
    assert 21 < drawn.mean() < 24


def test_fixed_lengths_are_fixed() -> None:
    assert FixedLengths(7).draw(3, np.random.default_rng(0)).tolist() == [7, 7, 7]


def test_observed_lengths_come_as_often_as_they_were_seen_and_are_cut(seed: int) -> None:
    observed = np.array([5, 5, 5, 4_000])
    drawn = EmpiricalLengths(observed).draw(20_000, np.random.default_rng(seed))
    assert set(drawn) == {5, 512}
    assert np.mean(drawn == 5) == pytest.approx(0.75, abs=0.02)


def test_observed_lengths_can_be_replayed() -> None:
    lengths = TraceLengths(np.array([5, 9, 900]), longest=100)
    assert lengths.of(np.array([0, 2, 2, 1])).tolist() == [5, 100, 100, 9]
    assert set(lengths.draw(100, np.random.default_rng(0))) == {5, 9, 100}


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(WorkloadError, match="standard_deviation"):
        NormalLengths(standard_deviation=0)
    with pytest.raises(WorkloadError, match="from 9 to 8"):
        NormalLengths(standard_deviation=1, shortest=9, longest=8)
    with pytest.raises(WorkloadError, match="not 0"):
        FixedLengths(0)
    with pytest.raises(WorkloadError, match="no lengths"):
        EmpiricalLengths(np.zeros(0, np.int64))
    with pytest.raises(WorkloadError, match="1 token or more"):
        EmpiricalLengths(np.array([3, 0]))
    with pytest.raises(WorkloadError, match="not -1"):
        FixedLengths(1).draw(-1, np.random.default_rng(0))

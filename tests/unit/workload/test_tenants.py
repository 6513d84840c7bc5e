from __future__ import annotations

import numpy as np
import pytest

from workload.errors import WorkloadError
from workload.tenants import EmpiricalTenants, TraceTenants, UniformTenants, ZipfTenants


def test_uniform_tenants_have_equal_shares(seed: int) -> None:
    drawn = UniformTenants(20).draw(100_000, np.random.default_rng(seed))
    assert drawn.dtype == np.int64
    counts = np.bincount(drawn, minlength=20)
    assert len(counts) == 20
    assert counts == pytest.approx(np.full(20, 5_000), rel=0.07)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_zipf_tenants_have_the_shares_of_their_ranks(exponent: float, seed: int) -> None:
    tenants = ZipfTenants(1_000, exponent)
    counts = np.bincount(tenants.draw(400_000, np.random.default_rng(seed)), minlength=1_000)
    assert len(counts) == 1_000
    assert counts[:5] / counts.sum() == pytest.approx(tenants.shares[:5], rel=0.08)
    assert tenants.shares[0] / tenants.shares[9] == pytest.approx(10**exponent)
    slope = np.polyfit(np.log(np.arange(1, 31)), np.log(counts[:30]), 1)[0]
    assert slope == pytest.approx(-exponent, abs=0.06)


def test_observed_tenants_are_drawn_or_replayed(seed: int) -> None:
    observed = np.array([0, 0, 3])
    drawn = EmpiricalTenants(observed).draw(20_000, np.random.default_rng(seed))
    assert np.mean(drawn == 3) == pytest.approx(1 / 3, abs=0.02)
    assert TraceTenants(observed).of(np.array([2, 0, 2])).tolist() == [3, 0, 3]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(WorkloadError, match="not 0"):
        UniformTenants(0)
    with pytest.raises(WorkloadError, match="exponent"):
        ZipfTenants(5, exponent=float("nan"))
    with pytest.raises(WorkloadError, match="no tenants"):
        EmpiricalTenants(np.zeros(0, np.int64))
    with pytest.raises(WorkloadError, match="0 or more"):
        EmpiricalTenants(np.array([-1]))

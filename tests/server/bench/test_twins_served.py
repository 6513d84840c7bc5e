"""A server that waits instead of computing: calibrated, frozen and predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.kit.synthetic_home import SMALL
from bench.kit.twins.frozen import FrozenSettings, predict
from bench.kit.twins.loads import POISSON
from bench.kit.twins.variants import VARIANTS
from builder.placement.server_costs import ServerCosts

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.serial]
TINY = replace(SMALL, hidden_size=64, intermediate_size=128, num_heads=2, num_upper_layers=2)
SETTINGS = FrozenSettings(
    TINY,
    calibration_loads=(0.5, 2.0),
    loads=(1.5,),
    processes=(POISSON,),
    repeats=2,
    duration_s=5.0,
    least_batches=40,
    max_rows=64,
    profiled_batches=40,
    capacity_batches=12,
    paced_rows_per_s=120.0,
    tenants=8,
)


def test_a_paced_server_is_as_slow_as_it_was_told_and_predicted(tmp_path: Path) -> None:
    frozen = predict(VARIANTS["paced_1"], SETTINGS, "fcfs", tmp_path, None, seed=1)
    assert frozen.capability.rows_per_s == pytest.approx(120, rel=0.15)
    costs = ServerCosts.read(tmp_path / "costs-paced_1.json")
    assert costs == frozen.costs
    assert costs.cores.slowness == pytest.approx(1.0, abs=0.1)
    assert costs.front.reach_us > 0 and costs.front.hop_us > 0 and costs.front.encoding.of(1) > 0
    (one,) = frozen.predicted
    assert len(one.runs) == len(one.simulated) == 2
    assert 0.3 < one.real < 0.9 and abs(one.points) < 10

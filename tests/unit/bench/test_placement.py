"""`bench.placement`: what its figures are made of, on cases of a second or less."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from bench.kit.placing.grid import GridSettings, grid_figures, grid_rows, largest_where
from bench.kit.placing.large_fleet import FleetSettings, fleet_figures, fleet_row
from bench.kit.placing.loads import devices, even_model, gamma_traffic, shares
from bench.kit.placing.loads_by_rate import GammaLoad, RecordedTrace, TraceLoad
from bench.kit.placing.mixed_models import MixedSettings, mixed_figures, mixed_row
from bench.kit.placing.published import PublishedSettings, problem_of, published_figures, published_rows
from bench.kit.placing.small_cases import small_figures, small_rows
from bench.placement import both_figures


def test_the_published_setting_is_that_of_the_paper() -> None:
    problem = problem_of(5.0, 200.0, seed=1)
    assert len(problem.models) == 24 and len(problem.devices) == 16
    assert len(problem.traffic) == pytest.approx(8_000, rel=0.15)
    counts = problem.traffic.counts(24)
    assert counts[:4].sum() > 1.5 * counts[-4:].sum()
    for stages in (2, 4, 8):
        shape = problem.forms.shape(stages)
        times = problem.forms.times.latency_us[shape, 0, :stages]
        assert times.max() <= np.ceil(238_000 / stages) + 1, "stages are even"
    assert problem.models[0].size_bytes * 2 < problem.devices[0].memory_bytes < problem.models[0].size_bytes * 3


@pytest.mark.long
def test_replication_comes_out_as_published() -> None:
    """One seed; seeds scatter by about a point."""
    found = published_figures(published_rows(PublishedSettings(1), seed=2024))
    assert found["replication_points_apart"] < 4
    assert found["alpaserve_points_outside"] < 2


def test_points_apart_are_the_largest() -> None:
    row = {"replication": 0.5, "stages_4": 0.8, "stages_8": 0.9, "published_replication": 0.5}
    rows = [{**row, "slo_scale": scale, "published_alpaserve": 0.85} for scale in (1.5, 2.0, 3.0, 5.0)]
    rows[1] = {**rows[1], "replication": 0.47, "published_alpaserve": 0.92}
    rows[2] = {**rows[2], "published_alpaserve": 0.75}
    found = published_figures(rows)
    assert found["replication_points_apart"] == pytest.approx(3)
    assert found["alpaserve_points_outside"] == pytest.approx(5)


def test_the_largest_load_is_found() -> None:
    assert largest_where(lambda load: load <= 0.3, 0.01, 1.2, 20) == pytest.approx(0.3, rel=1e-3)
    assert largest_where(lambda load: True, 0.01, 1.2, 3) == 1.2
    assert largest_where(lambda load: False, 0.01, 1.2, 3) == 0.01


@pytest.mark.long
def test_a_cell_of_the_grid_compares_plan_and_replication() -> None:
    (row,) = grid_rows([GammaLoad(4, 0.0, 4.0, 2_000, seed=3)], GridSettings(3, 10))
    assert row["load_99_plan"] > row["load_99_replication"]
    assert row["devices_plan"] <= 4 < row["devices_replication"]
    assert row["training"] >= 0.99 and row["load_99_training"] > 0.01
    figures = grid_figures([row])
    assert figures["rate_over_replication_99"] > 1.5 and figures["devices_saved_99"] > 1.5
    assert figures["held_out_loss_points"] == pytest.approx(100 * max(0.0, row["training"] - row["held_out"]))


def test_grid_figures_are_geometric_means() -> None:
    row = {"load_99_plan": 0.4, "load_99_replication": 0.1, "devices_plan": 4.0, "devices_replication": 4.0}
    row |= {"held_out": 0.9, "training": 0.95}
    found = grid_figures([row, {**row, "load_99_plan": 0.1, "training": 0.85}])
    assert found["rate_over_replication_99"] == pytest.approx(2)
    assert found["devices_saved_99"] == pytest.approx(1)
    assert found["held_out_loss_points"] == pytest.approx(2.5)
    assert found["replication_nowhere_share"] == 0.0
    nowhere = grid_figures([row, {**row, "load_99_replication": 0.01}])
    assert nowhere["replication_nowhere_share"] == 0.5


def test_the_worse_of_grid_and_trace_counts() -> None:
    row = {"load_99_plan": 0.4, "load_99_replication": 0.1, "devices_plan": 4, "devices_replication": 4}
    row |= {"held_out": 0.9, "training": 0.95}
    worse = {**row, "load_99_plan": 0.2, "training": 0.92}
    found = both_figures([row], [worse])
    assert found["rate_over_replication_99"] == found["rate_over_replication_99_trace"] == pytest.approx(2)
    assert found["held_out_loss_points"] == found["held_out_loss_points_grid"] == pytest.approx(5)
    assert both_figures([row], []) == grid_figures([row])


def test_a_recorded_trace_is_judged_by_other_days(tmp_path: Path) -> None:
    """Each request is known by the second at which it came."""
    path, rng = tmp_path / "trace.csv", np.random.default_rng(1)
    begin, seconds = datetime(2024, 11, 15, 16, 57), np.sort(rng.choice(6 * 86_400, 3_000, replace=False))
    names = rng.choice(["often", "seldom", "once"], 3_000, p=[0.7, 0.28, 0.02])
    lines = [f"{begin + timedelta(seconds=int(each))},{name}" for each, name in zip(seconds, names, strict=True)]
    path.write_text("\n".join(["time,base_model", *lines]))
    trace = RecordedTrace.read(path).of_busiest(2)
    assert len(trace.models) == np.count_nonzero(names != "once")
    assert np.bincount(trace.models)[0] == np.count_nonzero(names == "often")
    days = [trace.days(first) for first in (0, 1)]
    assert sum(len(each.models) for each in days) == len(trace.models)
    seen = [set((trace.arrived_us // 1_000_000)[(trace.arrived_us // 86_400_000_000) % 2 == first]) for first in (0, 1)]
    back = [
        {int(each) % 86_400 + (2 * (int(each) // 86_400) + first) * 86_400 for each in part.arrived_us // 1_000_000}
        for first, part in enumerate(days)
    ]
    assert back == seen and not back[0] & back[1]
    load = TraceLoad(trace, 2)
    for rate_per_s in (5.0, 50.0):
        parts = [load.traffic(rate_per_s, 7, is_judge) for is_judge in (False, True)]
        total = sum(map(len, parts))
        assert total == len(trace.models)
        assert total / (sum(part.duration_us for part in parts) / 1e6) == pytest.approx(rate_per_s, rel=0.1)
        assert set((parts[0].deadlines_us - parts[0].arrived_us).tolist()) == {7}


def test_a_trace_that_is_none_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    for content, complaint in (
        ("time,group\n2024-11-15,a\n", "no column base_model"),
        ("time,base_model\n", "no requests"),
        ("time,base_model\nsoon,a\n", "trace.csv"),
    ):
        path.write_text(content)
        with pytest.raises(InvalidArgumentError, match=complaint):
            RecordedTrace.read(path)


def test_small_cases_are_compared_with_the_best_of_all() -> None:
    rows = small_rows(4, 300, seed=1)
    assert all(row["plan"] <= row["optimum"] + 1e-12 for row in rows)
    assert small_figures(rows)["plan_over_optimum"] > 0.95
    assert small_figures([{"plan": 0.5, "optimum": 1.0, "fast": 0.4, "full": 0.5}])["fast_over_full"] == 0.8


def test_the_ablation_compares_three_ways() -> None:
    row = mixed_row(MixedSettings(of_each=1, num_devices=5, rate_per_s=6.0, duration_s=60.0), seed=1)
    assert row["plan"] >= row["round_robin"] - 0.02 and row["published_plan"] == 0.96
    assert mixed_figures({"plan": 0.96, "round_robin": 0.8})["plan_over_round_robin"] == pytest.approx(1.2)


def test_a_smaller_fleet_stands_for_a_large_one() -> None:
    row = fleet_row(FleetSettings(16, tenants=20_000, roots=8, recorded_s=2.0), seed=1)
    assert row["requests"] == 1_067 and row["in_time"] > 0.9
    figures = fleet_figures({**row, "seconds": 2.0})
    assert figures["plan_s_1000_gpus"] == 125 and figures["planned_devices"] == 16


def test_loads_are_as_asked() -> None:
    traffic = gamma_traffic([20.0, 5.0], 4.0, 2_000.0, [7, 9], seed=1)
    np.testing.assert_allclose(traffic.counts(2) / 2_000, [20, 5], rtol=0.15)
    gaps = np.diff(traffic.of([0]).arrived_us)
    assert gaps.std() / gaps.mean() == pytest.approx(4, rel=0.2)
    assert set((traffic.deadlines_us - traffic.arrived_us).tolist()) == {7, 9}
    assert sum(shares(5, 0.5)) == pytest.approx(1) and shares(3, 1.0)[0] == pytest.approx(6 / 11)
    assert sum(even_model("r", 100, 77).halves_us) == 100
    assert len({device.host for device in devices(16, 1, 8)}) == 2

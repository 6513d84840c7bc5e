"""`bench.replace`: how its traffic drifts, and that moves cost what they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.kit.placing.drift import DriftSettings, drift_figures, drift_rows, windows_of
from builder.placement.planner.move_costs import MoveCosts

SMALL = DriftSettings(num_roots=4, num_devices=3, drifts=(True, False), window_s=60.0)
AT_ONCE = MoveCosts(0.0, 0.0, 1e18, 0.0)


def test_windows_drift_where_they_are_to(seed: int) -> None:
    windows = windows_of(replace(SMALL, drifts=(True, False, True), window_s=400.0), seed)
    assert [window.drifts for window in windows] == [False, True, False, True]
    shares = [window.traffic.counts(4) / len(window.traffic) for window in windows]
    alike = [window.alike.counts(4) / len(window.alike) for window in windows]
    np.testing.assert_allclose(shares, alike, atol=0.06)
    np.testing.assert_allclose(shares[1], shares[2], atol=0.06)
    assert not np.array_equal(windows[0].traffic.arrived_us[:9], windows[0].alike.arrived_us[:9])
    rate = 0.35 * 3 / 0.012
    for window in windows:
        assert len(window.traffic) / 400 == pytest.approx(rate, rel=0.15)


def test_moves_that_take_no_time_lose_nothing() -> None:
    rows = drift_rows(replace(SMALL, costs=AT_ONCE), seed=3)
    dear = drift_rows(replace(SMALL, costs=replace(AT_ONCE, reload_s=30.0)), seed=3)
    assert [row["requests"] for row in rows] == [row["requests"] for row in dear]
    assert [row["static"] for row in rows] == [row["static"] for row in dear]
    assert all(row["replaced_nowhere"] == row["always_nowhere"] == 0 for row in rows)
    assert sum(row["always_steps"] for row in rows) > 0
    assert sum(row["always"] for row in rows) > sum(row["always"] for row in dear)
    figures = drift_figures(rows)
    assert figures["attainment_static"] <= figures["attainment_replaced"] <= figures["attainment_free"] + 0.01


def test_figures_weigh_windows_by_their_requests() -> None:
    row = {"static": 0.5, "replaced": 0.8, "always": 0.6, "free": 0.9, "requests": 100, "drifts": True}
    row |= {f"{way}_{what}": 2 for way in ("replaced", "always") for what in ("steps", "nowhere")}
    figures = drift_figures([row, {**row, "static": 0.9, "requests": 300}])
    assert figures["attainment_static"] == pytest.approx(0.8)
    assert figures["regained"] == pytest.approx(0.0)
    assert drift_figures([row])["regained"] == pytest.approx(0.75)
    assert figures["steps_replaced"] == 4 and figures["nowhere_requests"] == 4

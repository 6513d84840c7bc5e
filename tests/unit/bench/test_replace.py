"""`bench.replace`: how its traffic drifts, that moves cost what they take, and what paced servers are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.kit.drifting.home import DriftHome, drift_home, write_rows
from bench.kit.drifting.judgement import Moved, WindowRun, paced_figures
from bench.kit.placing.drift import DriftSettings, Way, drift_figures, drift_rows, windows_of
from builder.fleet.fleet_placement import FleetPlacement
from builder.fleet.routing import Routing
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.planner import plan
from hplm_client import ClientError, NotReadyError, UnavailableError
from loadtest.outcome import Outcome
from loadtest.requests import Requests
from loadtest.schedule import Row, Schedule

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


def test_slow_devices_meet_the_same_requests() -> None:
    rows, slow = (drift_rows(replace(SMALL, drifts=(True,), slowness=factor), seed=3) for factor in (1.0, 1.5))
    assert [row["requests"] for row in rows] == [row["requests"] for row in slow]
    assert slow[0]["free"] < rows[0]["free"] - 0.01


def test_plans_know_nothing_of_slowness() -> None:
    settings = replace(SMALL, drifts=(True, True), costs=AT_ONCE)
    rows, slow = (drift_rows(replace(settings, slowness=factor), seed=3) for factor in (1.0, 2.5))
    for what in ("replaced_steps", "always_steps", "replaced_nowhere"):
        assert [row[what] for row in rows] == [row[what] for row in slow]
    assert sum(row["always_steps"] for row in rows) > 0


def test_figures_weigh_windows_by_their_requests() -> None:
    row = {"static": 0.5, "replaced": 0.8, "always": 0.6, "free": 0.9, "requests": 100, "drifts": True}
    row |= {f"{way}_{what}": 2 for way in ("replaced", "always") for what in ("steps", "nowhere")}
    figures = drift_figures([row, {**row, "static": 0.9, "requests": 300}])
    assert figures["attainment_static"] == pytest.approx(0.8)
    assert figures["regained"] == pytest.approx(0.0)
    assert drift_figures([row])["regained"] == pytest.approx(0.75)
    assert figures["steps_replaced"] == 4 and figures["nowhere_requests"] == 4


@pytest.fixture(scope="module")
def home() -> Iterator[DriftHome]:
    with drift_home(SMALL, seed=5) as made:
        yield made


def test_paced_servers_are_sent_the_simulated_requests(home: DriftHome, seed: int) -> None:
    traffic = windows_of(SMALL, seed)[1].traffic
    rows = home.rows(traffic, np.random.default_rng(seed))
    assert [round(1e6 * row.at_s) for row in rows] == traffic.arrived_us.tolist()
    assert {row.deadline_ms for row in rows} == {60}
    root_of = {hplm: number for number, hplms in enumerate(home.hplms) for hplm in hplms}
    assert [root_of[row.hplm] for row in rows] == traffic.models.tolist()
    assert len({row.hplm for row in rows}) > len(home.hplms)


def test_the_planner_gives_each_paced_server_two_roots_and_the_gateway_knows_them(
    home: DriftHome, tmp_path: Path, seed: int
) -> None:
    window = windows_of(SMALL, seed)[0]
    trace = write_rows(home.rows(window.traffic, np.random.default_rng(seed)), tmp_path / "trace.csv")
    fleet = home.fleet(trace, seed)
    assert [model.alone_us for model in fleet.models] == [SMALL.alone_us] * SMALL.num_roots
    assert len(fleet.traffic) == len(window.traffic)
    np.testing.assert_array_equal(fleet.traffic.models, window.traffic.models)
    servers = ["server-1", "server-2", "server-3"]
    placed = FleetPlacement.of_plan(plan(fleet, seed), servers, home.roots, None)
    assert {len(placed.roots_of(server) or home.roots) for server in servers} <= {1, 2}
    held = {server: placed.roots_of(server) for server in servers}
    root_of = {hplm: f"r{number}" for number, hplms in enumerate(home.hplms) for hplm in hplms}
    routing = Routing.of(held, root_of)
    for tenant, holders in routing.of_tenant.items():
        root = root_of[f"{tenant}/task"]
        assert set(holders) == {server for server, roots in held.items() if roots is None or root in roots}
    assert len(routing.of_tenant) == len(root_of)


def run(way: Way, errors: list[ClientError | None], unsent: int = 0, moved: Moved = Moved()) -> WindowRun:
    """A window whose requests are answered at once, or end with an error; the last ones are not sent."""
    schedule = Schedule.of(Row(float(number), "acme/topic", "two words", 250) for number in range(len(errors) + unsent))
    outcomes = [Outcome.of(number, number, number + 0.1, error) for number, error in enumerate(errors)]
    outcomes += [Outcome.unsent(len(errors) + number, 9.0) for number in range(unsent)]
    return WindowRun(way, 1, Requests.of(schedule, outcomes), moved)


def test_lost_is_what_no_server_answered_or_rejected() -> None:
    late = UnavailableError("predicted to be answered in 300 ms; the deadline is in 240 ms")
    broken = UnavailableError("upstream connect error or disconnect/reset before headers")
    assert run(Way.REPLACED, [None, late]).lost == 0
    assert run(Way.REPLACED, [None, broken, NotReadyError("the server is stopping")]).lost == 2
    unsent = run(Way.REPLACED, [None, None, late], unsent=2)
    assert unsent.lost == 2 and unsent.row()["of them not sent"] == 2
    assert unsent.row()["requests"] == 5 and unsent.row()["attainment"] == pytest.approx(0.4)


def test_paced_figures_stand_beside_predicted_ones() -> None:
    late = UnavailableError("predicted to be answered in 300 ms; the deadline is in 240 ms")
    runs = [
        run(Way.STATIC, [None, late, late, late]),
        run(Way.REPLACED, [None, None, late, late], moved=Moved(2, 12.0)),
        run(Way.REPLACED, [None, None, None, None], moved=Moved(1, 9.0)),
        run(Way.FREE, [None, None, None, None]),
    ]
    predicted = {f"attainment_{way}": share for way, share in zip(Way, (0.35, 0.75, 0.7, 0.8), strict=True)}
    figures = paced_figures(runs, predicted)
    assert figures["paced_attainment_replaced"] == pytest.approx(0.75), "of all requests of both windows"
    assert figures["paced_replaced_over_static_points"] == pytest.approx(50)
    assert figures["paced_free_over_replaced_points"] == pytest.approx(25)
    assert figures["predicted_error_points"] == pytest.approx(10)
    assert (figures["lost_requests"], figures["paced_restarts"], figures["paced_restart_s"]) == (0, 3, 7)
    assert Counter(each.row()["lost"] for each in runs) == {0: 4}

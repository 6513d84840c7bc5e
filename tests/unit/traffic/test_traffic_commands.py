"""`hplm traffic`, and that what it exports is what simulations and load tests play."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from traffic_cases import BEGAN_US, HPLMS, Plain, S, drawn, write

from backends.scheduling.cost_model import CostModel
from backends.wire import AUTO, LEVELS
from loadtest.scenarios import Content, Replay
from loadtest.texts import WordTexts
from workload.lengths import FixedLengths
from workload.tenants import UniformTenants
from workload.traces import read_trace

Run = Callable[..., str]


@pytest.fixture
def rows(seed: int) -> list[Plain]:
    return drawn(random.Random(seed), 200, BEGAN_US, 20 * S)


@pytest.fixture
def home(tmp_path: Path, rows: list[Plain]) -> Path:
    (tmp_path / "home" / "traffic").mkdir(parents=True)
    write(tmp_path / "home" / "traffic" / "a.traffic", rows, BEGAN_US, BEGAN_US + 20 * S)
    return tmp_path / "home"


def test_show_prints_all_and_json_the_same(run_hplm: Run, home: Path, tmp_path: Path) -> None:
    printed = run_hplm("traffic", "show", "--home", home, "--by", "family", "--svg", tmp_path / "t.svg")
    lines = dict(line.split("\t", 1) for line in printed.splitlines())
    shown = json.loads(run_hplm("traffic", "show", "--home", home, "--by", "family", "--json"))
    assert int(lines["requests"]) == shown["requests"] == 200
    assert {group["family"] for group in shown["groups"]} == {"mini/shop", "mini/news"} <= set(lines)
    assert (tmp_path / "t.svg").read_text().startswith("<svg")
    assert set(lines["over time"]) <= set("▁▂▃▄▅▆▇█· ")


def test_a_part_of_the_time_is_shown(run_hplm: Run, home: Path, rows: list[Plain]) -> None:
    shown = json.loads(
        run_hplm(
            "traffic",
            "show",
            "--home",
            home,
            "--since",
            "2023-11-14T22:13:25",
            "--until",
            "2023-11-14T22:13:30",
            "--json",
        )
    )
    firsts = [row[0] for row in rows if row[-1]]
    assert shown["requests"] == sum(BEGAN_US + 5 * S <= time < BEGAN_US + 10 * S for time in firsts)
    assert (shown["from"], shown["recorded_s"]) == ("2023-11-14T22:13:25Z", 5.0)
    assert "--since: 'some-day' is neither a date" in run_hplm("traffic", "show", "--home", home, "--since", "some-day")


def test_a_span_without_traffic_is_said(run_hplm: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr("cli.traffic.typer.echo", lambda line, err=False: noted.append(line))
    assert run_hplm("traffic", "show", "--home", home, "--since", "0h") == ""
    assert noted == ["no traffic in that span"]


def test_a_trace_has_each_row_with_its_time_hplm_tokens_and_deadline(
    run_hplm: Run, home: Path, rows: list[Plain], tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    said = run_hplm("traffic", "export", path, "--home", home)
    assert said.startswith(f"{path}: ") and f"hplm place --traffic {path}" in said
    first = min(row[0] for row in rows)
    wanted = Counter(
        (
            f"{(row[0] - first) / 1e6:.6f}",
            HPLMS[row[1]].id,
            str(-(-row[4] // 1000)) if row[4] else "",
            LEVELS[row[6]].replace(AUTO, ""),
        )
        for row in rows
        for _ in range(row[2])
    )
    with path.open() as file:
        lines = list(csv.DictReader(file))
    shown = ("time_s", "hplm", "deadline_ms", "level")
    assert Counter(tuple(line[name] for name in shown) for line in lines) == wanted
    assert sum(int(line["tokens"]) for line in lines) == sum(row[3] for row in rows)
    trace = read_trace(path)
    assert len(trace) == len(lines) and set(trace.tenant_names) == {hplm.id for hplm in HPLMS}
    assert trace.deadlines_ms is not None
    assert np.isnan(trace.deadlines_ms).sum() == sum(row[2] for row in rows if not row[4])


def test_simulations_and_load_tests_play_what_is_exported(run_hplm: Run, home: Path, tmp_path: Path) -> None:
    path, model = tmp_path / "trace.csv", tmp_path / "model.json"
    run_hplm("traffic", "export", path, "--home", home)
    model.write_text(json.dumps(CostModel(2_000.0, 100.0, 30.0, 0.01, 50.0).to_json()))
    of_trace = ("--lengths", "trace", "--tenants", "trace", "--deadlines", "trace")
    (found,) = json.loads(
        run_hplm("simulate", "--cost-model", model, "--arrivals", f"trace:{path}", *of_trace, "--json")
    )
    trace = read_trace(path)
    assert found["requests"] == len(trace)
    content = Content(tuple(hplm.id for hplm in HPLMS), WordTexts(), FixedLengths(5))
    schedule = Replay(trace, UniformTenants).schedule(content, np.random.default_rng(0))
    assert trace.tenants is not None and trace.deadlines_ms is not None and schedule.deadlines_ms is not None
    asked = [schedule.hplms[hplm] for hplm in schedule.hplm_of]
    assert asked == [trace.tenant_names[tenant] for tenant in trace.tenants]
    assert schedule.deadlines_ms.tolist() == np.nan_to_num(trace.deadlines_ms, nan=0).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show",), "no traffic was recorded in"),
        (("export", "t.csv"), "no traffic was recorded in"),
        (("show", "--by", "colour"), "Invalid value for '--by'"),
    ],
)
def test_wrong_commands_get_one_line(run_hplm: Run, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in run_hplm("traffic", *arguments, "--home", tmp_path)


def test_a_time_without_requests_makes_no_trace(run_hplm: Run, home: Path, tmp_path: Path) -> None:
    failed = run_hplm("traffic", "export", tmp_path / "t.csv", "--home", home, "--since", "2030-01-01")
    assert "no request was recorded in this time" in failed
    assert not (tmp_path / "t.csv").exists()
    failed = run_hplm("traffic", "export", tmp_path / "no" / "t.csv", "--home", home)
    assert f"the folder {tmp_path / 'no'} does not exist" in failed

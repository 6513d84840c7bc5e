"""`hplm simulate`, as it is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.home import Home
from backends.scheduling.cost_model import CostModel
from backends.scheduling.cost_profile import CostProfile, Measured, write_profile
from builder.placement.server_costs import CoreCosts, Linear, ServerCosts

Run = Callable[..., str]
MODEL = CostModel(2_000.0, 100.0, 30.0, 0.01, 50.0)
SHORT = ("--duration-s", "8", "--deadlines", "5x-20x", "--load", "1.3x")


@pytest.fixture
def run(run_hplm: Run) -> Run:
    return lambda *arguments: run_hplm("simulate", *arguments)


def test_numbers_in_a_file_are_enough(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_json()))
    (found,) = json.loads(run("--cost-model", str(path), *SHORT, "--json"))
    assert found["policy"] == "fcfs"
    assert 0.3 < found["attainment"] < 1.0
    assert sum(found["rejected"].values()) == round(found["requests"] * (1 - found["attainment"]))
    assert [found] == json.loads(run("--cost-model", str(path), *SHORT, "--json"))
    assert "attainment" in run("--cost-model", str(path), *SHORT)


def test_the_profile_of_a_home_is_found(run: Run, tiny_home: Home, tmp_path: Path) -> None:
    at_home = ("--home", str(tiny_home.path))
    assert "has no cost model yet" in run(*at_home, *SHORT)
    measured = Measured("fingerprint", "another machine", "bf16", "ragged", 2)
    path = write_profile(tiny_home.profile("tiny"), CostProfile(MODEL, measured, "2", 100, 5.0))
    from_home = run(*at_home, *SHORT, "--json")
    assert json.loads(from_home)[0]["requests"] > 0
    assert run("--cost-model", str(path), *SHORT, "--json") == from_home


def test_earlier_spellings_draw_the_same_load(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_json()))

    def simulated(*words: str) -> str:
        return run("--cost-model", str(path), "--json", *words)

    older = ("--duration-s", "5", "--load", "90", "--tenants", "zipf:50:1.2", "--lengths", "normal:9")
    newer = ("--duration", "5s", "--load", "90/s", "--tenants", "zipf:count=50,exponent=1.2")
    newer = (*newer, "--lengths", "normal:deviation=9")
    bursts = ("--arrivals", "mmpp", "--burst-ratio", "4", "--burst-s", "1", "--deadlines", "9-90")
    assert json.loads(simulated(*older, *bursts)) == json.loads(
        simulated(*newer, "--arrivals", "bursts:ratio=4,stay=1s", "--deadline-ms", "9ms-90ms")
    )
    gamma = ("--arrivals", "gamma", "--cv", "3")
    assert json.loads(simulated(*older, *gamma)) == json.loads(simulated(*newer, "--arrivals", "gamma:cv=3"))
    assert json.loads(simulated(*older, "--arrivals", "even")) == json.loads(
        simulated(*newer, "--arrivals", "deterministic")
    )


@pytest.mark.long
def test_ladders_gain_what_they_save(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_json()))
    at = ("--cost-model", str(path), *SHORT, "--json")
    (full,), (ladders,) = (
        json.loads(run(*at, *more)) for more in ((), ("--early-share", "0.6", "--early-after", "2/6"))
    )
    assert full["requests"] == ladders["requests"] and ladders["attainment"] > full["attainment"]
    assert ladders["early"] == pytest.approx(0.6, abs=0.1)
    overload = (*at, "--load", "3x", "--early-share", "0.6", "--early-after", "2/6", "--late")
    (settle,), (reject,) = (json.loads(run(*overload, late)) for late in ("settle", "reject"))
    assert reject["doubtful"] == 0 < settle["doubtful"] and reject["attainment"] < settle["attainment"]


def test_students_answer_what_all_layers_could_not(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_json()))
    at = ("--cost-model", str(path), *SHORT, "--json")
    of_students = ("--students", "3", "--student-depth", "1/6")
    full, chosen, three = (
        json.loads(run(*at, *more))[0] for more in ((), of_students, (*of_students, "--always", "3"))
    )
    assert full["requests"] == chosen["requests"] and chosen["attainment"] > full["attainment"]
    assert 1 <= chosen["students"] <= 3 and "students" not in full
    assert (three["students"], three["changes_per_minute"]) == (3, 0)
    assert "of 3 students 1 to 3 answer, not 4" in run(*at, *of_students, "--always", "4")
    assert "no exits" in run(*at, *of_students, "--early-share", "0.5")


@pytest.mark.long
def test_a_fleet_loses_a_server_and_hardly_a_request(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_json()))
    at = ("--cost-model", str(path), "--duration-s", "8", "--deadlines", "5x-20x", "--load", "0.4x", "--servers", "3")
    (whole,), (less,) = (
        json.loads(run(*at, "--json", *more))
        for more in ((), ("--lose", "2@2s-4s", "--drain", "1@5s", "--balance", "0"))
    )
    assert whole["requests"] == less["requests"] and whole["attainment"] > 0.99
    assert (whole["retried"], less["lost"]) == (0, 0) and less["retried"] > 0
    assert sum(row["requests"] for row in less["servers"]) == less["requests"] + less["retried"]
    (alone,) = json.loads(run("--cost-model", str(path), "--duration-s", "8", "--load", "0.4x", "--json"))
    assert whole["requests"] == pytest.approx(3 * alone["requests"], rel=0.05)
    said = run(*at)
    assert "server-3" in said and "rows_per_batch" in said


def test_what_serving_takes_is_read_from_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    ServerCosts(MODEL, CoreCosts(1.5, 500.0, 500.0, 3.0), staging=Linear(2_000.0)).write(path)
    (with_costs,) = json.loads(run("--server-costs", str(path), *SHORT, "--json"))
    model = tmp_path / "model.json"
    model.write_text(json.dumps(MODEL.to_json()))
    (without,) = json.loads(run("--cost-model", str(model), *SHORT, "--json"))
    assert with_costs["requests"] == without["requests"]
    assert with_costs["attainment"] < without["attainment"] - 0.05
    assert "does not match its checksum" in run("--server-costs", str(model), *SHORT)


@pytest.mark.long
def test_stages_share_a_load(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_json()))
    at = ("--cost-model", str(path), *SHORT)
    (one,), (two,) = (json.loads(run(*at, "--json", *more)) for more in ((), ("--stages", "2")))
    assert two["requests"] == pytest.approx(2 * one["requests"], rel=0.05)
    assert two["attainment"] > 0.3 and "1 to 16 stages, not 0" in run(*at, "--stages", "0")
    assert "simulated without ladders" in run(*at, "--stages", "2", "--early-share", "0.5")
    assert "no stages" in run(*at, "--stages", "2", "--servers", "2")


def test_a_fleet_that_cannot_be_is_one_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_json()))
    at = ("--cost-model", str(path), *SHORT)
    assert "--servers is 1 to 64, not 0" in run(*at, "--servers", "0")
    assert "name servers of --servers" in run(*at, "--lose", "1@2s")
    assert "'soon' is not a server and a time" in run(*at, "--servers", "2", "--lose", "soon")
    assert "there is no number 5" in run(*at, "--servers", "2", "--drain", "5@1s")
    assert "--lose" in run(*at, "--servers", "2", "--lose", "1@later")
    assert "balance of 50 %" in run(*at, "--servers", "2", "--balance", "50")
    assert "no ladders" in run(*at, "--servers", "2", "--early-share", "0.5")


def test_what_cannot_be_simulated_is_one_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_json()))
    for after in ("2/0", "a third"):
        said = run("--cost-model", str(path), "--early-share", "0.5", "--early-after", after)
        assert "is no share, such as 2/6" in said
    assert "of --students" in run("--cost-model", str(path), "--always", "1")
    assert "which --early-share gives" in run("--cost-model", str(path), "--late", "reject")
    assert "is 0 to 1, not 1.5" in run("--cost-model", str(path), "--early-share", "1.5")
    assert "policy 'best' is not one of" in run("--cost-model", str(path), "--policy", "best")
    assert "--duration must be above 0, not '-1'" in run("--cost-model", str(path), "--duration-s", "-1")
    assert "arrivals 'often' is not one of poisson, even," in run("--cost-model", str(path), "--arrivals", "often")
    assert "room for one row" in run("--cost-model", str(path), "--max-rows", "0")
    assert "No such file" in run("--cost-model", str(tmp_path / "nothing.json"))
    for content in ("{}", "[1]", "nonsense", "[" * 100_000, json.dumps(MODEL.to_json() | {"constant_us": 10**400})):
        path.write_text(content)
        assert "is not a cost model" in run("--cost-model", str(path))
    path.write_text('{"model": {}}')
    assert "does not match its checksum" in run("--cost-model", str(path))

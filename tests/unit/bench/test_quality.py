"""What the options of the quality benches decide: the root that is built, and the seeds."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from bench import quality, theta
from bench.kit.tiny_home import write_corpus, write_task, write_tiny_bert
from bench.tasks.schemes import Outcome, Trial
from builder.progress import Report


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "corpora").mkdir()
    write_corpus(folder / "corpora/garden.txt", 300, seed=1)
    write_corpus(folder / "corpora/general.txt", 60, seed=2)
    train, _ = write_task(folder / "tasks/mood", "mood", seed=3, train=60)
    (folder / "tasks/mood/test.jsonl").write_text(train.read_text())
    write_tiny_bert(folder / "model", max_tokens=128)
    return folder


@pytest.fixture(autouse=True)
def trials_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schemes are not what is tested here, so each trial has an outcome at once, in this process."""

    class Instant:
        def run(self, trial: Trial, report: Report) -> Outcome:
            return Outcome("accuracy", 0.5, 50.0 + trial.settings.seed, 1)

    monkeypatch.setattr(quality, "_schemes", lambda place: Instant())
    monkeypatch.setattr(quality, "local_map", lambda workers: map)


def measured(data: Path, place: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    """The report of one run of the bench, and the seeds of its trials."""
    root = ["--data", str(data), "--source", str(data / "model"), "--lower", "2", "--steps", "2"]
    places = ["--home", str(place / "home"), "--cache", str(place / "cache"), "--json", str(place / "report.json")]
    few = ["--schemes", "shared", "hplm", "--epochs", "1", "--workers", "1"]
    monkeypatch.setattr(sys, "argv", ["bench.quality", *root, *places, *few, *options])
    quality.quality.main()
    report: dict[str, Any] = json.loads((place / "report.json").read_text())
    return report


def trial_seeds(place: Path) -> set[int]:
    return {trial["seed"] for trial in map(json.loads, (place / "cache/trials.jsonl").read_text().splitlines())}


@pytest.mark.parametrize(("n", "other"), [(2, 5), (5, 2)])
def test_n_and_the_seeds_are_those_asked_for(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, other: int
) -> None:
    report = measured(data, tmp_path, monkeypatch, "--n", str(n), "--seed", "11")
    assert (report["settings"]["n"], report["settings"]["K"], report["seed"]) == (n, 2, 11)
    assert trial_seeds(tmp_path) == {11, 12}
    with pytest.raises(SystemExit, match=f"has n = {n}, not {other}"):
        measured(data, tmp_path, monkeypatch, "--n", str(other))
    measured(data, tmp_path, monkeypatch, "--seeds", "1")
    assert trial_seeds(tmp_path) == {1, 11, 12}


@pytest.mark.parametrize(("arguments", "seeds"), [([], theta.FULL.seeds), (["--seed", "7"], (7, 8, 9))])
def test_the_seeds_of_theta_begin_at_the_one_asked_for(arguments: list[str], seeds: tuple[int, ...]) -> None:
    options = ArgumentParser()
    options.add_argument("--seed", type=int)
    theta.add_options(options)
    assert theta.with_seeds_from(theta.FULL, options.parse_args(arguments).seed).seeds == seeds


def test_what_was_tried_is_not_tried_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measured(data, tmp_path, monkeypatch, "--seeds", "1")
    trials = tmp_path / "cache/trials.jsonl"
    lines = trials.read_text()
    assert len(lines.splitlines()) == 2
    trials.write_text(lines + lines[:40])  # a kill in the middle of a line
    with monkeypatch.context() as patched:
        patched.setattr(quality, "local_map", None)  # whatever is tried now fails
        again = measured(data, tmp_path, patched, "--seeds", "2", "--report")
    assert (again["figures"], again["rows"]) == (first["figures"], first["rows"])
    more = measured(data, tmp_path, monkeypatch, "--seeds", "2")
    assert more["settings"]["trials"] == 4
    assert [line["seed"] for line in map(json.loads, trials.read_text().splitlines()[3:])] == [2, 2]
    with pytest.raises(SystemExit, match="no task has been tried"):
        measured(data, tmp_path, monkeypatch, "--seed", "5", "--report")


def test_the_gap_is_of_seeds_that_both_its_sides_have() -> None:
    plan = quality.Plan(("one", "two", "three"), ("dedicated", "shared", "hplm"), (1, 2), epochs=1)
    tests = {("one", "dedicated", 1): 80.0, ("one", "hplm", 1): 76.0, ("one", "hplm", 2): 84.0, ("two", "hplm", 1): 9.0}
    tests |= {("one", "shared", seed): 50.0 + seed for seed in (1, 2)}
    tests |= {("three", scheme, seed): 70.0 + seed for scheme in ("dedicated", "hplm") for seed in (1, 2)}
    tests |= {("three", "shared", 2): 60.0}
    found = {
        trial: Outcome("accuracy", 0.0, tests[key], 1)
        for trial in plan.trials()
        if (key := (trial.task, trial.scheme, trial.settings.seed)) in tests
    }
    figures, rows = quality.figures_and_rows(plan, found)
    assert (figures["mean_gap"], figures["worst_gap"]) == (2.0, 4.0)
    assert (figures["mean_hplm"], figures["mean_shared"]) == ((76.0 + 71.5) / 2, (51.0 + 60.0) / 2)
    assert [(row["task"], row["seeds"]) for row in rows] == [("one", "1"), ("three", "2 (shared 1)")]

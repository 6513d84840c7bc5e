"""What the options of the quality benches decide, what a trial leaves behind, and the gap between two schemes."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.home import Home
from backends.registry.registry import Registry
from bench import quality, theta
from bench.kit.tiny_home import (
    ignore,
    write_corpus,
    write_pairs,
    write_tagged,
    write_task,
    write_tiny_bert,
    write_values,
)
from bench.tasks.cut import cut_task
from bench.tasks.data import Caps, load_task
from bench.tasks.gaps import Gap
from bench.tasks.outcome import Outcome
from bench.tasks.schemes import Schemes, Trial
from builder.construct.tasks.examples import TaggedSentence
from builder.progress import Report
from builder.settings.hplm import TuneSettings


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


def outcome(test: float, texts: int = 100) -> Outcome:
    """An accuracy of `test` points, with the first texts right."""
    terms = np.stack([np.arange(texts) < round(test * texts / 100), np.ones(texts)], axis=1)
    return Outcome("accuracy", 50.0, test, 1, terms.astype(np.float64))


@pytest.fixture
def trials_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each trial have an outcome at once, in this process."""

    class Instant:
        def run(self, trial: Trial, report: Report) -> Outcome:
            return outcome(50.0 + trial.settings.seed)

    monkeypatch.setattr(quality, "_schemes", lambda place: Instant())
    monkeypatch.setattr(quality, "local_map", lambda workers: map)


def measured(data: Path, place: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    """The report of one run of the bench, and the seeds of its trials."""
    root = ["--data", str(data), "--source", str(data / "model"), "--lower", "2", "--steps", "2"]
    places = ["--home", str(place / "home"), "--cache", str(place / "cache"), "--json", str(place / "report.json")]
    monkeypatch.setattr(sys, "argv", ["bench.quality", *root, *places, "--workers", "1", *options])
    quality.quality.main()
    report: dict[str, Any] = json.loads((place / "report.json").read_text())
    return report


def kept(place: Path) -> list[dict[str, Any]]:
    paths = sorted((place / "cache/trials").iterdir())
    return [json.loads(path.read_text()) for path in paths if path.name != "root.json"]


@pytest.mark.usefixtures("trials_take_no_time")
@pytest.mark.parametrize(("n", "other"), [(2, 5), (5, 2)])
def test_n_and_the_seeds_are_those_asked_for(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, other: int
) -> None:
    report = measured(data, tmp_path, monkeypatch, "--n", str(n), "--seed", "11", "--seeds", "2")
    assert (report["settings"]["n"], report["settings"]["K"], report["seed"]) == (n, 2, 11)
    assert {(trial["scheme"], trial["seed"]) for trial in kept(tmp_path)} == {
        (scheme, seed) for scheme in ("dedicated", "hplm") for seed in (11, 12)
    }
    with pytest.raises(SystemExit, match=f"has n = {n}, not {other}"):
        measured(data, tmp_path, monkeypatch, "--n", str(other))
    measured(data, tmp_path, monkeypatch)
    assert {trial["seed"] for trial in kept(tmp_path)} == {1, 11, 12}


@pytest.mark.parametrize(("arguments", "seeds"), [([], theta.FULL.seeds), (["--seed", "7"], (7, 8, 9))])
def test_the_seeds_of_theta_begin_at_the_one_asked_for(arguments: list[str], seeds: tuple[int, ...]) -> None:
    options = ArgumentParser()
    options.add_argument("--seed", type=int)
    theta.add_options(options)
    assert theta.with_seeds_from(theta.FULL, options.parse_args(arguments).seed).seeds == seeds


@pytest.mark.usefixtures("trials_take_no_time")
def test_what_was_tried_is_not_tried_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measured(data, tmp_path, monkeypatch, "--schemes", "shared", "hplm")
    assert len(kept(tmp_path)) == 2
    with monkeypatch.context() as patched:
        patched.setattr(quality, "local_map", None)  # whatever is tried now fails
        again = measured(data, tmp_path, patched, "--schemes", "shared", "hplm", "--seeds", "2", "--report")
    assert (again["figures"], again["rows"]) == (first["figures"], first["rows"])
    assert {name: again["settings"][name] for name in ("root", "split", "n")} == {
        "root": "minilm",
        "split": "2 + 2",
        "n": 3,
    }
    more = measured(data, tmp_path, monkeypatch, "--schemes", "shared", "hplm", "--seeds", "2")
    assert more["settings"]["trials"] == len(kept(tmp_path)) == 4
    with pytest.raises(SystemExit, match="no task has been tried"):
        measured(data, tmp_path, monkeypatch, "--seed", "5", "--report")


@pytest.mark.usefixtures("trials_take_no_time")
def test_a_report_needs_only_the_folder_of_the_trials(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = measured(data, tmp_path, monkeypatch, "--schemes", "shared", "hplm")
    shutil.rmtree(tmp_path / "home")
    options = ["--schemes", "shared", "hplm", "--report"]
    again = measured(data, tmp_path, monkeypatch, *options)
    assert (again["figures"], again["rows"], again["settings"]) == (first["figures"], first["rows"], first["settings"])
    trials = tmp_path / "cache/trials"
    of_hplm = next(trials.glob("mood-hplm-1-*.json"))
    shutil.copy(of_hplm, trials / "mood-hplm-1-000000000000.json")
    with pytest.raises(SystemExit, match="has 2 results of mood hplm seed 1"):
        measured(data, tmp_path, monkeypatch, *options)
    (trials / "root.json").unlink()
    (trials / "mood-hplm-1-000000000000.json").unlink()
    with pytest.raises(SystemExit, match="nothing was measured there"):
        measured(data, tmp_path, monkeypatch, *options)


def test_each_trial_is_a_file_as_soon_as_it_ends(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second trial of a task fails, and the first one stays."""

    class FailsTaught:
        def run(self, trial: Trial, report: Report) -> Outcome:
            if trial.scheme == "hplm":
                raise KeyboardInterrupt
            return outcome(60.0)

    monkeypatch.setattr(quality, "_schemes", lambda place: FailsTaught())
    with pytest.raises(KeyboardInterrupt):
        measured(data, tmp_path, monkeypatch)
    assert [trial["scheme"] for trial in kept(tmp_path)] == ["dedicated"]


def test_trials_with_the_defaults_of_users_and_no_others() -> None:
    plan = quality.Plan(("mrpc", "sst2"), ("dedicated", "hplm"))
    trials = plan.trials()
    assert [(trial.task, trial.scheme, trial.settings.seed) for trial in trials] == [
        ("mrpc", "dedicated", 1),
        ("mrpc", "hplm", 1),
        ("sst2", "dedicated", 1),
        ("sst2", "hplm", 1),
        ("mrpc", "dedicated", 2),
        ("mrpc", "hplm", 2),
    ]
    assert {trial.settings for trial in trials if trial.scheme == "hplm"} == {
        replace(TuneSettings.defaults(is_taught=True), seed=seed) for seed in (1, 2)
    }


def test_an_hplm_of_a_trial_is_what_create_makes_live(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both schemes for real, in the quick size; the outcome is that of the test file."""
    report = measured(data, tmp_path, monkeypatch, "--quick", "--schemes", "dedicated", "hplm")
    live = Registry.open(Home(tmp_path / "home")).hplm("bench/mood-hplm-1")
    outcomes = {trial["scheme"]: Outcome.from_json(trial["outcome"]) for trial in kept(tmp_path)}
    assert outcomes["hplm"].dev == pytest.approx(100 * live.metrics["dev_accuracy"], abs=0.01)
    assert outcomes["hplm"].test == pytest.approx(100 * outcomes["hplm"].terms[:, 0].mean(), abs=1e-3)
    gap = outcomes["dedicated"].test - outcomes["hplm"].test
    assert report["figures"]["mean_gap"] == pytest.approx(gap, abs=0.01)
    assert report["figures"]["mean_gap_low"] <= report["figures"]["mean_gap"] <= report["figures"]["mean_gap_high"]
    assert [row["task"] for row in report["rows"]] == ["mood", "mean of the others", "mean of all"]
    again = Schemes(quality.Workspace(data, tmp_path / "home", "minilm", tmp_path / "cache", Caps(32, 32, 64)))
    trial = quality.Plan(("mood",), ("hplm",), epochs=1).trials()[0]
    assert again.run(trial, ignore).test == outcomes["hplm"].test
    assert Registry.open(Home(tmp_path / "home")).hplm("bench/mood-hplm-1").version == 2


def test_a_cut_task_is_read_as_the_same_examples(tmp_path: Path) -> None:
    for name, write in (("mood", write_task), ("pair", write_pairs), ("value", write_values), ("ner", write_tagged)):
        folder = tmp_path / "tasks" / name
        _, dev = write(folder, "mood", 7) if name == "mood" else write(folder, 7)  # type: ignore[operator]
        (folder / f"test{dev.suffix}").write_text(dev.read_text())
        caps = Caps(train=20, dev=10, test=5)
        whole, cut = load_task(tmp_path, name, caps), cut_task(tmp_path, name, caps, tmp_path / "cut").read()
        assert (cut.task, cut.train, cut.test) == (whole.task, whole.train, whole.test)
        assert len(cut.train) == 20
        if name != "ner":
            assert cut.dev == whole.dev
        else:
            assert all(isinstance(each, TaggedSentence) for each in cut.dev)


def test_the_gap_is_of_seeds_that_both_its_sides_have() -> None:
    plan = quality.Plan(("one", "two", "three"), ("dedicated", "shared", "hplm"), num_seeds=2)
    tests = {("one", "dedicated", 1): 80.0, ("one", "hplm", 1): 76.0, ("one", "hplm", 2): 84.0, ("two", "hplm", 1): 9.0}
    tests |= {("one", "shared", seed): 50.0 + seed for seed in (1, 2)}
    tests |= {("three", scheme, seed): 70.0 + seed for scheme in ("dedicated", "hplm") for seed in (1, 2)}
    tests |= {("three", "shared", 2): 60.0}
    found = {
        trial: outcome(tests[key])
        for trial in plan.trials()
        if (key := (trial.task, trial.scheme, trial.settings.seed)) in tests
    }
    figures, rows = quality.figures_and_rows(plan, found)
    assert (figures["mean_gap"], figures["worst_gap"]) == (2.0, 4.0)
    assert (figures["mean_hplm"], figures["mean_shared"]) == ((76.0 + 71.5) / 2, (51.0 + 60.0) / 2)
    assert [(row["task"], row["seeds"]) for row in rows[:2]] == [("one", "1"), ("three", "2 (shared 1)")]


def test_entities_have_a_line_of_their_own() -> None:
    plan = quality.Plan(("mood", "terms"), ("dedicated", "hplm"), num_seeds=1)
    found = {trial: outcome(80.0 if trial.scheme == "dedicated" else 78.0) for trial in plan.trials()}
    terms = {"dedicated": [[4.0, 5.0, 5.0]] * 50, "hplm": [[3.0, 5.0, 5.0]] * 50}
    for trial in plan.trials():
        if trial.task == "terms":
            counts = np.array(terms[trial.scheme])
            found[trial] = Outcome("f1", 0.0, 100 * counts[0, 0] / 5, 1, counts)
    figures, rows = quality.figures_and_rows(plan, found)
    assert (figures["ner_gap"], figures["others_gap"], figures["mean_gap"]) == (20.0, 2.0, 11.0)
    assert [row["task"] for row in rows] == ["mood", "terms", "mean of NER", "mean of the others", "mean of all"]
    assert rows[2]["gap (95 %)"] == "20.00 (20.00 to 20.00)"  # the same in each text, so however they are drawn


def test_the_interval_of_a_gap_is_paired() -> None:
    """The two differ on 40 of 400 texts; the interval is that of 40 texts, not of two times 400."""
    right = np.ones((400, 2))
    first, second = right.copy(), right.copy()
    first[:100, 0] = 0
    second[:140, 0] = 0
    one, other = (Outcome("accuracy", 0.0, 0.0, 1, terms) for terms in (first, second))
    gap = Gap.of("one", [one], [other])
    assert gap.value == pytest.approx(10.0)
    error = 100 * np.sqrt(0.1 * 0.9 / 400)
    assert gap.interval == pytest.approx((10 - 1.96 * error, 10 + 1.96 * error), abs=0.5)
    mean = Gap.mean([gap, Gap.of("another", [one], [other])])
    low, high = mean.interval
    assert high - low == pytest.approx(2 * 1.96 * error / np.sqrt(2), rel=0.15)


def test_an_outcome_is_read_as_it_was_kept() -> None:
    before = Outcome("pearson", 1.5, 2.5, 3, np.random.default_rng(1).normal(size=(7, 6)), 12.5)
    after = Outcome.from_json(json.loads(json.dumps(before.to_json())))
    np.testing.assert_allclose(after.terms, before.terms, rtol=1e-6)
    assert {**vars(after), "terms": None} == {**vars(before), "terms": None}

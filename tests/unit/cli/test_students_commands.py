"""`hplm students`: a root's students made, shown, and rejected in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import write_corpus, write_task
from builder.construct.students import add

Run = Callable[..., str]


@pytest.fixture
def run(run_hplm: Run) -> Run:
    return run_hplm


def test_students_of_a_root_are_made_and_shown(run: Run, tiny_home: Home, tmp_path: Path) -> None:
    home, corpus = ("--home", tiny_home.path), write_corpus(tmp_path / "corpus.txt", 300, seed=3)
    makes = f"has no students; 'hplm students make tiny --home {tiny_home.path}' makes some"
    assert makes in run("students", "show", "tiny", *home)
    make = ("students", "make", "tiny", "--corpus", corpus, *home)
    assert "learns nothing: --steps" in run(*make, "--steps", "4")
    assert "saves nothing" in run(*make, "--layers", "2")
    assert "1 to 8 students" in run(*make, "--count", "0")
    made = json.loads(run(*make, "--count", "2", "--layers", "1", "--json"))
    assert (made["students"], made["layers"], made["width"], made["depth"]) == (2, 1, 64, 0.5)
    assert made["wiring"] == "chained"
    assert [each["students"] for each in made["fidelity"]] == [1, 2]
    assert all({"students", "cosine", "error"} == each.keys() for each in made["fidelity"])
    assert f"{made['fidelity'][1]['cosine']}" in run("students", "show", "tiny", *home)
    assert json.loads(run("students", "show", "tiny", "--json", *home)) == made
    assert "has students already; --replace" in run(*make)
    again = json.loads(run(*make, "--count", "1", "--replace", "--json"))
    assert again["students"] == 1 and again["fingerprint"] != made["fingerprint"]
    assert "does not exist" in run("students", "make", "unknown", *home)
    narrow = json.loads(
        run(*make, "--width", "32", "--layers", "2", "--count", "2", "--steps", "4", "--replace", "--json")
    )
    assert (narrow["students"], narrow["layers"], narrow["width"]) == (2, 2, 32) and 0.2 < narrow["depth"] < 0.4
    wired = ("--wiring", "parallel", "--steps", "4", "--count", "1", "--replace", "--json")
    assert json.loads(run(*make, *wired))["wiring"] == "parallel"
    assert "a multiple of 16, the width of their root's attention heads, not 40" in run(
        *make, "--width", "40", "--replace"
    )


def test_a_creation_that_is_interrupted_at_its_students_says_what_goes_on(
    run: Run, tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    home, corpus = ("--home", tiny_home.path), write_corpus(tmp_path / "corpus.txt", 300, seed=3)
    train, dev = write_task(tmp_path / "task", "topic", seed=100, train=32)
    run("students", "make", "tiny", "--corpus", corpus, "--count", "1", *home)
    files = ("--train", train, "--dev", dev)
    with monkeypatch.context() as patch:
        patch.setattr(add, "add_students", interrupted)
        err = run("create", "acme/new", "--domain", "farm", "--students", *files, "--epochs", "1", *home)
    command = f"students add acme/new --train {train} --dev {dev} --home {tiny_home.path}"
    assert err.splitlines()[-1] == f"hplm: interrupted; 'hplm {command}' goes on where this one was"
    assert json.loads(run(*command.split(), "--epochs", "1", "--json"))["version"] == 2


def test_hplms_are_created_and_updated_with_students(run: Run, tiny_home: Home, tmp_path: Path) -> None:
    home, corpus = ("--home", tiny_home.path), write_corpus(tmp_path / "corpus.txt", 300, seed=3)
    train, dev = write_task(tmp_path / "task", "topic", seed=100, train=32)
    files = ("--train", train, "--dev", dev, "--epochs", "1", *home)
    create = ("create", "acme/new", "--domain", "farm", "--students", *files)
    assert "'hplm students make tiny' makes some" in run(*create)
    assert not Registry.open(tiny_home).has_hplm("acme/new")
    run("students", "make", "tiny", "--corpus", corpus, "--count", "2", *home)
    created = json.loads(run(*create, "--json"))
    assert created["version"] == 2 and created["students"]["best"] in (1, 2)
    added = json.loads(run("students", "add", "acme/topic", *files, "--rank", "4", "--json"))
    assert {"dev_full", "dev_1", "dev_2", "best"} <= added.keys() and added["version"] == 2
    assert "does not know" in run("students", "add", "acme/mood", *files)
    run("update", "acme/topic", "--force", *files)
    assert Registry.open(tiny_home).hplm("acme/topic").best_students == 0

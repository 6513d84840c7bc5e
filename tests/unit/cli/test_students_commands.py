"""`hplm students`: a root's students made, shown, and rejected in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.home import Home
from bench.kit.tiny_home import write_corpus

Run = Callable[..., str]


@pytest.fixture
def run(run_hplm: Run) -> Run:
    return run_hplm


def test_students_of_a_root_are_made_and_shown(run: Run, tiny_home: Home, tmp_path: Path) -> None:
    home, corpus = ("--home", tiny_home.path), write_corpus(tmp_path / "corpus.txt", 300, seed=3)
    assert "has no students; 'hplm students make tiny'" in run("students", "show", "tiny", *home)
    make = ("students", "make", "tiny", "--corpus", corpus, "--steps", "4", *home)
    assert "saves nothing" in run(*make, "--layers", "2")
    assert "1 to 8 students" in run(*make, "--count", "0")
    made = json.loads(run(*make, "--count", "2", "--layers", "1", "--json"))
    assert (made["students"], made["layers"], made["width"]) == (2, 1, 64)
    assert {"cosine", "error"} == set(made["fidelity_2"])
    assert json.loads(run("students", "show", "tiny", "--json", *home)) == made
    assert "has students already; --replace" in run(*make)
    again = json.loads(run(*make, "--count", "1", "--replace", "--json"))
    assert again["students"] == 1 and again["fingerprint"] != made["fingerprint"]
    assert "does not exist" in run("students", "make", "unknown", *home)

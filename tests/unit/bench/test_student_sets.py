"""`bench.student_sets`: the sets that students are compared with, and what the figures say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.home import Home
from backends.root.store import RootFolder
from backends.root.student_set import read_students
from backends.root.student_shape import PARALLEL
from bench.kit.tiny_home import write_corpus
from bench.student_sets import BESIDE, figures_of, measured_sets
from bench.students_quality import QUICK
from bench.tasks.student_sets import Sets
from builder.settings.students import StudentSettings


@pytest.fixture
def sets(tiny_home: Home, tmp_path: Path) -> Sets:
    root, corpus = RootFolder(tiny_home.root("tiny")), write_corpus(tmp_path / "corpus.txt", 300, seed=3)
    settings = StudentSettings(count=1, layers=1, steps=4, tokens_per_batch=256)
    return Sets(tiny_home, root, [corpus], settings, tmp_path / "sets")


def test_exits_are_upper_layers_and_come_as_near_to_the_last_as_a_map_can(sets: Sets, tiny_home: Home) -> None:
    root, made = RootFolder(tiny_home.root("tiny")), sets.installed("exits")
    assert made.shape.count * made.shape.layers == 1
    texts, own, upper = sets.hidden_texts(sets.corpus().sample(200), "corpus"), made.layers(), root.upper()
    batch = texts.batch(np.arange(64))
    attend = batch.attend(root.geometry.num_heads)
    with torch.no_grad():
        early, *_, final = (states[batch.mask] for states in upper.states(batch.hidden, attend))
        torch.testing.assert_close(own(batch.hidden, attend)[batch.mask], early)
        says = made.maps()[0](early)
        best = torch.linalg.lstsq(torch.cat([early, torch.ones(len(early), 1)], dim=1), final).solution
        least = (torch.cat([early, torch.ones(len(early), 1)], dim=1) @ best - final).square().mean()
    assert (says - final).square().mean() < 1.5 * least + 1e-4 < final.var()


@pytest.mark.parametrize("width", [None, 32])
def test_bagged_students_say_their_mean(sets: Sets, tiny_home: Home, width: int | None) -> None:
    sets.settings = replace(sets.settings, count=2, width=width)
    made = sets.installed("bagged")
    bagged, inputs = made.maps(), made.inputs().state_dict()
    for number, own in enumerate(bagged):
        alone = sets._made(replace(sets.settings, wiring=PARALLEL, count=1, seed=sets.settings.seed + number))
        for name, tensor in alone.inputs().state_dict().items():
            assert torch.equal(inputs[name.replace("0.", f"{number}.", 1)], tensor)
        one, other = (says.get_parameter("weight") for says in (own, alone.maps()[0]))
        torch.testing.assert_close(one, other / 2, rtol=1e-2, atol=1e-3)


def test_sets_are_made_once_and_put_in_place(sets: Sets, tiny_home: Home) -> None:
    fingerprints = {kind: sets.fingerprint(kind) for kind in ("chained", "deep", "exits")}
    assert {kind: sets.installed(kind).fingerprint for kind in fingerprints} == fingerprints
    again = read_students(RootFolder(tiny_home.root("tiny")))
    assert again is not None and again.fingerprint == fingerprints["exits"]
    assert QUICK.students.count is None


def row(of_set: str, students: int, error: float) -> dict[str, Any]:
    return {"set": of_set, "students": students, "held-out error": error}


def test_errors_are_compared_at_equal_arithmetic() -> None:
    rows = [row("chained", 1, 0.4), row("chained", 2, 0.3), row("bagged", 1, 0.5), row("bagged", 2, 0.4)]
    found = figures_of([*rows, row("exits", 1, 0.2), row("narrow", 1, 0.9)])
    assert found == {"second_over_first": 0.75, "chained_over_bagged": 0.75, "chained_over_exits": 1.5}


def test_a_set_is_measured_as_it_was_when_it_was_made(sets: Sets, tmp_path: Path) -> None:
    made = sets.installed("chained")
    foreign = write_corpus(tmp_path / "foreign.txt", 60, seed=9)
    rows = measured_sets(sets, BESIDE, None, [foreign])
    assert [(row["set"], row["students"]) for row in rows] == [
        (kind, 1) for kind in ("chained", "exits", "deep", "boosted", "bagged")
    ]
    assert [row["share of the upper layers"] for row in rows] == [0.5] * 5
    for of_made, of_row in zip(made.fidelity, rows, strict=False):
        # `hplm students make` makes pairs of some of these texts.
        assert of_row["held-out error"] == pytest.approx(of_made["error"], rel=0.2)
    assert all(0 < row["foreign error"] != row["held-out error"] for row in rows)

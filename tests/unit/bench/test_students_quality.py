"""`bench.students_quality`: its figures, and the sets that students are compared with; no task is tried here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.home import Home
from backends.root.store import RootFolder
from backends.root.student_set import read_students
from bench.kit.tiny_home import write_corpus
from bench.students_quality import QUICK, Measured, Sets, Trials, figures_of
from bench.tasks.outcome import Outcome
from builder.settings.students import StudentSettings


def outcome(points: float) -> Outcome:
    return Outcome("accuracy", points, points, 1, np.array([[points, 100.0]]))


def measured(*points: float, best: int = 1) -> Measured:
    return Measured(tuple(map(outcome, points)), best)


def test_figures_are_shares_of_dedicated_models_by_task() -> None:
    kinds = ("exits", "bagged", "chained")
    beside = dict(zip(kinds, (measured(70), measured(60, 75), measured(79)), strict=True))
    found = figures_of(
        [
            Trials("one", 1, outcome(80), outcome(80), measured(72, 76, best=2), beside),
            Trials("one", 2, outcome(80), outcome(80), measured(76, 74), {}),
            Trials("two", 1, outcome(50), outcome(45), measured(40, 40), beside),
        ]
    )
    assert found["share_1"] == pytest.approx((92.5 + 80) / 2)
    assert found["share_best"] == pytest.approx((95 + 80) / 2) and found["worst_share"] == 80
    assert found["share_hplm"] == pytest.approx(95) and found["best_minus_1"] == pytest.approx(1.0)
    differences = [found[f"minus_{kind}"] for kind in kinds]
    assert differences == pytest.approx([(6 - 30) / 2, (1 - 35) / 2, (-3 - 39) / 2])
    without = figures_of([Trials("one", 1, outcome(80), outcome(80), measured(72), {})])
    assert not any(name.startswith("minus") for name in without)


def test_a_trial_is_kept_as_it_was() -> None:
    kept, one = measured(72, 76, best=2), Measured.from_json(measured(72, 76, best=2).to_json())
    assert (one.of_one, one.of_best, one.of_all, one.best) == (72, 76, 76, 2)
    np.testing.assert_array_equal(one.outcomes[1].terms, kept.outcomes[1].terms)


@pytest.fixture
def sets(tiny_home: Home, tmp_path: Path) -> Sets:
    root, corpus = RootFolder(tiny_home.root("tiny")), write_corpus(tmp_path / "corpus.txt", 300, seed=3)
    settings = StudentSettings(count=1, layers=1, steps=4, tokens_per_batch=256)
    return Sets(tiny_home, root, [corpus], settings, tmp_path / "sets")


def test_exits_are_upper_layers_and_come_as_near_to_the_last_as_a_map_can(sets: Sets, tiny_home: Home) -> None:
    root, made = RootFolder(tiny_home.root("tiny")), sets.installed("exits")
    assert made.shape.count * made.shape.layers == 1
    texts, own, upper = sets._hidden_texts(), made.layers(), root.upper()
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
        alone = sets._made(replace(sets.settings, count=1, seed=sets.settings.seed + number))
        for name, tensor in alone.inputs().state_dict().items():
            assert torch.equal(inputs[name.replace("0.", f"{number}.", 1)], tensor)
        one, other = (says.get_parameter("weight") for says in (own, alone.maps()[0]))
        torch.testing.assert_close(one, other / 2, rtol=1e-2, atol=1e-3)


def test_sets_are_made_once_and_put_in_place(sets: Sets, tiny_home: Home) -> None:
    fingerprints = {kind: sets.fingerprint(kind) for kind in ("boosted", "chained", "exits")}
    assert {kind: sets.installed(kind).fingerprint for kind in fingerprints} == fingerprints
    again = read_students(RootFolder(tiny_home.root("tiny")))
    assert again is not None and again.fingerprint == fingerprints["exits"]
    assert QUICK.students.count is None

"""Tunings that benches share in a home, and ladders of them in a copy."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.recipe import AdapterRecipe
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.scratch_home import copied_home
from bench.kit.tiny_home import write_task
from bench.kit.trials import Trials
from bench.tasks.cut import CutTask, cut_task
from bench.tasks.data import Caps
from bench.tasks.laddered import LadderedTasks
from bench.tasks.shared_tuning import SharedTunings, shared_tuning
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.export.repository import render_repository
from builder.levels.target import Target
from builder.progress import Step
from builder.requests.domains import GENERAL_DOMAIN
from builder.settings.hplm import TuneSettings
from cli.export import export_settings

SETTINGS = TuneSettings(recipe=AdapterRecipe(width=4), epochs=1)
TEXTS = 48


@pytest.fixture
def cut(tmp_path: Path) -> CutTask:
    _, dev = write_task(tmp_path / "data" / "tasks" / "mood", "mood", seed=3, train=TEXTS)
    shutil.copy(dev, dev.with_name("test.jsonl"))
    return cut_task(tmp_path / "data", "mood", Caps(train=TEXTS, dev=16, test=8), tmp_path / "cut")


def test_tunings_are_told_apart_by_what_they_depend_on(built_home: Home, cut: CutTask) -> None:
    domain = Registry.open(built_home).domain("tiny", GENERAL_DOMAIN)
    first = shared_tuning(built_home, domain, cut.files, SETTINGS)
    assert shared_tuning(built_home, domain, replace(cut.files, test=None), replace(SETTINGS)) == first
    assert cut.files.test is not None
    others = [
        shared_tuning(built_home, domain, cut.files, replace(SETTINGS, seed=5)),
        shared_tuning(built_home, domain, replace(cut.files, dev=cut.files.test), SETTINGS),
        shared_tuning(built_home, domain, cut.files, SETTINGS, torch.device("cuda")),
    ]
    assert len({each.path for each in (first, *others)}) == len({each.inputs for each in (first, *others)}) == 4


def test_a_tuning_that_is_done_is_not_repeated(tiny_home: Home, cut: CutTask) -> None:
    steps: list[Step] = []

    def trained_steps() -> list[int]:
        phases = Counter(step.phase for step in steps if step.phase.startswith("tune"))
        steps.clear()
        return [phases["tune adapters and head"], phases["tune lower layers to answer early"]]

    first = SharedTunings(tiny_home, "tiny", SETTINGS).tuned("levels/mood", cut, steps.append)
    assert trained_steps() == [2, 10]  # of 48 texts once, of 144 twice
    again = SharedTunings(tiny_home, "tiny", SETTINGS).tuned("other/name", cut, steps.append)
    assert trained_steps() == [1, 1]  # that all are done
    assert (first.hplm, again.hplm) == ("levels/mood", "other/name")
    assert torch.equal(first.head.weight, again.head.weight)


def test_ladders_are_selected_in_a_copy_of_the_home(tiny_home: Home, cut: CutTask, tmp_path: Path) -> None:
    copy = copied_home(tiny_home.path, tmp_path / "copy")
    render_repository(copy.repository, export_settings())
    tunings = SharedTunings(tiny_home, "tiny", SETTINGS)
    made = LadderedTasks(copy, tunings, Target.of(max_drop=1.0), Trials(tmp_path / "trials", {})).made("mood", cut)
    assert made.reason is not None and not made.found  # 16 texts certify nothing
    tuned, folder = tunings.tuned("levels/mood", cut, lambda _: None), copy.path / made.entry.folder
    stored = read_artifact(folder, tuned.root_fingerprint)
    assert stored.hplm == "levels/mood" and torch.equal(stored.head.weight.float(), tuned.head.weight.float())
    assert TrainedTexts.read(folder).num_among(cut.read().train) == TEXTS
    assert not Registry.open(tiny_home).has_hplm("levels/mood")

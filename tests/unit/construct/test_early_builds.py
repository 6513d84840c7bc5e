"""hPLMs whose lower layers learn to answer too: when they do, and what is not kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.adapters.recipe import AdapterRecipe
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import ignore, write_task
from builder.construct.hplm.early_tuning import EarlyTask, early_examples
from builder.construct.hplm.hplms import create_hplm, update_hplm
from builder.construct.hplm.tunable import Tuned
from builder.construct.hplm.tune import TuneSettings
from builder.construct.tasks.dataset import read_examples
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.construct.training.loop import DivergedError
from builder.progress import Step
from short_requests import new_hplm, next_hplm

QUICK = TuneSettings(recipe=AdapterRecipe(width=4), epochs=2, learning_rate=1e-2)
LONGER = TuneSettings(recipe=AdapterRecipe(width=8), epochs=10, learning_rate=1e-2)


@pytest.fixture
def registry(tiny_home: Home) -> Registry:
    return Registry.open(tiny_home)


def artifact(home: Home, entry: HplmEntry) -> HplmArtifact:
    return read_artifact(home.path / entry.folder, RootFolder(home.root("tiny")).fingerprint)


def phases(steps: list[Step]) -> set[str]:
    found = {step.phase for step in steps}
    steps.clear()
    return found


def test_lower_layers_learn_to_answer_where_that_is_requested(
    tiny_home: Home, registry: Registry, tmp_path: Path
) -> None:
    files, steps, phase = (
        dict(zip(("train", "dev"), write_task(tmp_path, "mood", seed=70, train=60), strict=True)),
        list[Step](),
        "tune lower layers to answer early",
    )
    request = new_hplm("new/one", "tiny", "farm", **files, tune=QUICK, early=True)
    entry = create_hplm(tiny_home, registry, request, steps.append)
    assert phase in phases(steps) and artifact(tiny_home, entry).origin["early_tuning"]
    assert "accuracy" in entry.metrics["early_tuning"] and entry.metrics["best_epoch"] <= QUICK.epochs
    root, train = RootFolder(tiny_home.root("tiny")), read_examples(files["train"], "classification")
    answered = early_examples(root, train)
    assert len(answered) == 3 * len(train)
    assert TrainedTexts.read(tiny_home.path / entry.folder).are_among(answered).all()
    then = update_hplm(tiny_home, registry, next_hplm("new/one", **files, force=True), steps.append)
    assert phase in phases(steps) and artifact(tiny_home, then).origin["early_tuning"]
    last = update_hplm(tiny_home, registry, next_hplm("new/one", **files, force=True, early=False), steps.append)
    assert phase not in phases(steps) and "early_tuning" not in last.metrics
    again = update_hplm(tiny_home, registry, next_hplm("new/one", **files, force=True), steps.append)
    assert phase not in phases(steps) and artifact(tiny_home, again).origin["early_tuning"] is False
    assert not list((tiny_home.path / "bank").rglob(".*tuning*"))


def test_weights_that_early_tuning_makes_worse_are_not_kept(
    tiny_home: Home, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, steps = (
        dict(zip(("train", "dev"), write_task(tmp_path, "mood", seed=70, train=60), strict=True)),
        list[Step](),
    )
    plain = create_hplm(tiny_home, registry, new_hplm("new/plain", "tiny", "farm", **files, tune=LONGER), ignore)
    assert plain.metrics["dev_accuracy"] > 0.7

    def spoilt(task: EarlyTask, *_: object) -> Tuned:
        return replace(task.own, head=task.own.head.map(lambda _, one: -one), metrics={"accuracy": 0.0})

    def diverged(*_: object) -> Tuned:
        raise DivergedError("it diverged")

    for number, (tuning, said) in enumerate(((spoilt, "worse: accuracy -"), (diverged, "it diverged"))):
        monkeypatch.setattr("builder.construct.hplm.early_tuning.tune_early", tuning)
        request = new_hplm(f"new/{number}", "tiny", "farm", **files, tune=LONGER, early=True)
        entry = create_hplm(tiny_home, registry, request, steps.append)
        (note,) = (step.note for step in steps if step.phase == "compare with the weights before")
        assert note == entry.metrics["early_tuning"] and note.startswith(f"not kept, {said}")
        assert torch.equal(artifact(tiny_home, entry).head.weight, artifact(tiny_home, plain).head.weight)
        assert entry.metrics["dev_accuracy"] == plain.metrics["dev_accuracy"]
        steps.clear()

"""`hplm select`: what is published, what is promised, and which texts count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.adapters.bank import read_artifact
from backends.adapters.ladder import EarlyStep, read_ladder
from backends.engine.exits import Exit, confidences
from backends.engine.stack import UpperStack
from backends.errors import ConflictError, InvalidArgumentError, TrainingDataError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import TOPICS, ignore, sample_texts
from builder.construct.hplm.hplms import building_hplm
from builder.construct.hplm.states import encoded_set
from builder.construct.tasks.calibration import fit_temperature
from builder.construct.tasks.dataset import TaskData, read_examples
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import MadeWith, TrainedTexts
from builder.levels.answers import StepAnswers
from builder.levels.certificate import THRESHOLDS, Certificate
from builder.levels.guarantee import Balance
from builder.levels.material import LabelledFiles, UnlabelledFile
from builder.levels.selecting import Selecting, Selection, select_ladder
from builder.levels.selecting_all import select_all
from builder.levels.served import served_rows
from builder.levels.target import Target
from builder.lifecycle.rollback import rollback_hplm
from builder.progress import Step
from builder.requests.levels import LadderTarget
from selection_cases import EASY, STACK, plain, select, written


def folders(home: Home) -> list[str]:
    return sorted(path.name for path in (home.path / "bank" / "tiny").iterdir() if not path.name.startswith("."))


def test_a_ladder_is_a_version_with_the_same_weights(tiny_home: Home, train: Path, held_out: Path) -> None:
    before = Registry.open(tiny_home).hplm("acme/topic")
    found = select(tiny_home, train, held_out)
    assert found.ladder is not None and found.reason is None
    entry = Registry.open(tiny_home).hplm("acme/topic")
    assert entry == found.entry and (entry.version, entry.levels) == (2, ("early", "full"))
    old, new = (tiny_home.path / each.folder for each in (before, entry))
    for path in old.iterdir():
        assert path.samefile(new / path.name), f"{path.name} was copied"
    assert {path.name for path in new.iterdir()} - {path.name for path in old.iterdir()} == {
        "levels.json",
        "exits.safetensors",
        "candidates.json",
    }
    assert entry.metrics["dev_accuracy"] == before.metrics["dev_accuracy"]
    assert entry.metrics["ladder"]["bound"] <= 0.2 and entry.metrics["size_bytes"] > before.metrics["size_bytes"]
    assert rollback_hplm(tiny_home, Registry.open(tiny_home), "acme/topic").levels == ("full",)


def answered(home: Home, found: Selection, file: Path) -> tuple[EarlyStep, list[tuple[Tensor, Tensor]]]:
    """The stored early step, and both answers to each text of a file."""
    root = RootFolder(home.root("tiny"))
    ladder = read_ladder(home.path / found.entry.folder, root.fingerprint)
    artifact = read_artifact(home.path / found.entry.folder, root.fingerprint)
    examples = read_examples(file, "classification")
    objective = objective_of(TaskData("classification", found.entry.labels, examples, examples))
    texts = encoded_set(home, found.entry.domain, objective, examples, "texts", ignore)
    assert ladder is not None
    stack = UpperStack(root, STACK)
    (rows,) = served_rows(stack, artifact, (ladder.early.after,), objective, texts, "texts", ignore)
    at_exit = rows.answered_by(ladder.early.head.to(torch.float32))
    return ladder.early, [(one[0], full[0]) for one, full in zip(at_exit, rows.logits, strict=True)]


def test_what_is_stored_is_what_was_certified(tiny_home: Home, train: Path, held_out: Path) -> None:
    """Counted again: the stored head, at the stored threshold, on all held-out texts."""
    found = select(tiny_home, train, held_out)
    early, rows = answered(tiny_home, found, held_out)
    sure = confidences([one for one, _ in rows], [Exit(early.after, early.head, early.temperature, None)] * len(rows))
    leaves = torch.tensor(sure) >= early.threshold
    texts = torch.tensor([found.entry.labels.index(text.topic) for text in sample_texts(400, 901)])
    reported = fit_temperature(torch.stack([one for one, _ in rows]), texts)
    assert early.reported_temperature == pytest.approx(reported, rel=0.05)
    assert early.reported_temperature != early.temperature
    figures = found.figures
    assert figures["certified_on"] == 320 and figures["held_out_texts"] == 400
    assert abs(float(leaves.float().mean()) - figures["answered_early"]) < 0.05
    labels = torch.tensor([found.entry.labels.index(text.topic) for text in sample_texts(400, 901)])
    answers, whole = (torch.stack([row[which] for row in rows]).argmax(-1) for which in (0, 1))
    harms = int(((whole == labels) & (answers != labels) & leaves).sum())
    assert figures["counted"] <= harms <= figures["counted"] + 80  # of the fifth that fits, too
    assert figures["answered_early"] > 0 and figures["mean_layers"] < 2


@pytest.mark.parametrize("target", [Target.of(agreement=0.8), Target.of(target_accuracy=0.5), Target.of(max_drop=30)])
def test_every_kind_of_target_is_kept_on_other_texts(
    tiny_home: Home, train: Path, held_out: Path, tmp_path: Path, target: Target
) -> None:
    found = select(tiny_home, train, held_out, target)
    assert found.ladder is not None and found.figures["answered_early"] > 0
    early, rows = answered(tiny_home, found, written(tmp_path / "fresh.jsonl", "topic", 400, seed=906))
    is_early = [float(torch.softmax(each / early.temperature, -1).max()) >= early.threshold for each, _ in rows]
    answers = [
        int((at_exit if leaves else full).argmax()) for (at_exit, full), leaves in zip(rows, is_early, strict=True)
    ]
    whole = [int(full.argmax()) for _, full in rows]
    labels = [found.entry.labels.index(text.topic) for text in sample_texts(400, 906)]
    right, full_right = (torch.tensor([a == b for a, b in zip(each, labels, strict=True)]) for each in (answers, whole))
    lost = {
        "agreement": torch.tensor([a != b for a, b in zip(answers, whole, strict=True)]),
        "target-accuracy": ~right,
        "max-drop": full_right & ~right,
    }[target.loss]
    assert float(lost.float().mean()) <= target.tolerance + 0.04  # two deviations of 400 texts


def test_a_fleet_needs_fewer_texts(tiny_home: Home, train: Path, tmp_path: Path) -> None:
    """Two points take 143 texts for each hPLM, and the least number there is for the mean of the fleet."""
    few = written(tmp_path / "few.jsonl", "topic", 120, seed=901)
    with pytest.raises(
        TrainingDataError, match=r"a drop of at most 2 points with certainty 0\.9 takes at least 143; "
    ) as refused:
        select(tiny_home, train, few, Target.of(max_drop=2))
    assert str(refused.value).endswith("these could certify a drop of at most 3 points at best")
    found = select(tiny_home, train, few, Target.of(max_drop=2, guarantee="fleet"))
    if found.ladder is None:
        assert found.reason is not None and "points in the mean of the fleet" in found.reason
    figures = found.figures
    assert figures["guarantee"] == "fleet" and figures["target"].endswith("in the mean of the fleet")
    at_ease = select(tiny_home, train, few, Target.of(max_drop=20, guarantee="fleet"))
    assert at_ease.ladder is not None, at_ease.reason
    assert at_ease.ladder.certified["guarantee"] == at_ease.entry.metrics["declared"]["guarantee"] == "fleet"
    assert at_ease.figures["bound"] == pytest.approx((at_ease.figures["counted"] + 1) / 97, abs=1e-4)


def test_what_full_misses_no_ladder_reaches(tiny_home: Home, train: Path, tmp_path: Path) -> None:
    wrong = [
        {"text": each.text, "label": next(topic for topic in TOPICS if topic != each.topic)}
        for each in sample_texts(400, 905)
    ]
    held_out = tmp_path / "wrong.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in wrong))
    before = folders(tiny_home)
    with pytest.raises(InvalidArgumentError, match=r"misses accuracy of at least 0\.6 with all its layers: it has 0\."):
        select(tiny_home, train, held_out, Target.of(target_accuracy=0.6))
    assert folders(tiny_home) == before


def test_a_target_that_no_threshold_keeps_publishes_nothing(
    tiny_home: Home, train: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.levels.candidate.certify", lambda *_: None)
    without = select(tiny_home, train, held_out)
    assert without.ladder is None and (without.entry.version, without.entry.levels) == (1, ("full",))
    assert (
        without.reason is not None and "nothing was published: acme/topic answers by all its layers" in without.reason
    )
    assert "these texts could certify a drop of at most 1.01 points" in without.reason
    monkeypatch.undo()
    laddered = select(tiny_home, train, held_out)
    monkeypatch.setattr("builder.levels.candidate.certify", lambda *_: None)
    later = select(tiny_home, train, held_out)
    assert later.entry == laddered.entry and later.reason is not None and "keeps the ladder" in later.reason


def test_a_ladder_by_which_hardly_any_text_leaves_is_not_published(
    tiny_home: Home, train: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No harm among texts none of which leaves proves any threshold, and all would pay for the head."""
    monkeypatch.setattr("builder.levels.selecting._Search._with_more", lambda _, pairs, *__: pairs)
    for share in (0.0, 0.03):  # of two layers one is saved
        none_leaves = Certificate(THRESHOLDS[0], 300, Balance(0), 0.0077, share)
        monkeypatch.setattr("builder.levels.candidate.certify", lambda *_, found=none_leaves: found)
        without = select(tiny_home, train, held_out)
        assert without.ladder is None and without.entry.version == 1
        assert "threshold" not in without.figures
        assert without.reason is not None
        assert without.reason.startswith("hardly any text is sure enough to leave early with a drop of at most")
        assert "nothing was published" in without.reason


def test_texts_that_were_trained_on_certify_nothing(tiny_home: Home, train: Path, held_out: Path) -> None:
    both = held_out.with_name("both.jsonl")
    both.write_text(held_out.read_text() + train.read_text())
    figures = select(tiny_home, train, both).figures
    assert figures["left_out_as_trained_on"] >= 160 and figures["held_out_texts"] == 400
    with pytest.raises(TrainingDataError, match=r"0 different texts, besides 160 that were trained on; .* at least"):
        select(tiny_home, train, train)


def test_dev_texts_may_certify_and_the_ladder_says_so(tiny_home: Home, train: Path, held_out: Path) -> None:
    """All layers answer them better than other texts, which is safe for a drop and not for an accuracy."""
    folder = tiny_home.path / Registry.open(tiny_home).hplm("acme/topic").folder
    assert len(MadeWith.read(folder).chose.hashes) > 0, "a tuning notes its dev texts"
    chose = TrainedTexts.of(read_examples(held_out, "classification")[:150])
    MadeWith(MadeWith.read(folder).trained, chose).write(folder)
    drop = select(tiny_home, train, held_out)
    assert (drop.figures["strict"], drop.figures["chose_the_version"]) == (False, 150) and not drop.warnings
    accuracy = select(tiny_home, train, held_out, Target.of(target_accuracy=0.5))
    assert [each.startswith("150 of the held-out texts chose") for each in accuracy.warnings] == [True]


def test_a_text_that_is_there_twice_counts_once(tiny_home: Home, train: Path, tmp_path: Path) -> None:
    few = written(tmp_path / "few.jsonl", "topic", 50, seed=907)
    few.write_text(8 * few.read_text())
    with pytest.raises(TrainingDataError, match="holds 50 different texts"):
        select(tiny_home, train, few)


def test_texts_without_labels_certify_that_answers_stay(tiny_home: Home, tmp_path: Path) -> None:
    """Counted on other texts: as many answers stay as was promised, and no figure speaks of labels."""
    target = Target.of(agreement=0.85)
    found = select_ladder(
        tiny_home,
        Registry.open(tiny_home),
        Selecting("acme/topic", plain(tmp_path / "plain.txt", 900, seed=911), target),
        STACK,
        ignore,
    )
    assert found.ladder is not None, found.reason
    figures = found.figures
    assert "full_accuracy" not in figures and "ece_after" not in figures
    assert figures["answered_early"] > 0 and figures["agreement"] >= 0.85
    assert figures["held_out_texts"] <= 450
    entry = Registry.open(tiny_home).hplm("acme/topic")
    assert entry.levels == ("early", "full")
    root = RootFolder(tiny_home.root("tiny"))
    artifact = read_artifact(tiny_home.path / entry.folder, root.fingerprint)
    examples = read_examples(written(tmp_path / "others.jsonl", "topic", 300, seed=912), entry.task)
    objective = objective_of(TaskData(entry.task, entry.labels, examples, examples))
    texts = encoded_set(tiny_home, entry.domain, objective, examples, "other", ignore)
    stack = UpperStack(root, replace(STACK, num_slots=2))
    (rows,) = served_rows(stack, artifact, (found.ladder.early.after,), objective, texts, "other", ignore)
    early = StepAnswers.beside(rows.logits, rows.answered_by(found.ladder.early.head))
    leaves = early.confidence(found.ladder.early.temperature) >= found.ladder.early.threshold
    assert (leaves & ~early.is_right).mean() <= 0.15


def test_texts_without_labels_promise_nothing_about_labels(tiny_home: Home, tmp_path: Path) -> None:
    selecting = Selecting("acme/topic", plain(tmp_path / "plain.txt", 900, seed=911), EASY)
    with pytest.raises(InvalidArgumentError, match="needs labels; texts without labels certify --agreement"):
        select_ladder(tiny_home, Registry.open(tiny_home), selecting, STACK, ignore)


def test_all_hplms_by_the_same_texts(tiny_home: Home, tmp_path: Path) -> None:
    """Who fails stops none, and who has that ladder already keeps its version."""
    registry, texts = Registry.open(tiny_home), plain(tmp_path / "plain.txt", 900, seed=914)
    (tiny_home.path / registry.hplm("acme/topic").folder / "trained_on.hashes").unlink()
    before = {entry.id: entry.version for entry in registry.hplms()}
    target, steps = LadderTarget(agreement=0.85), list[Step]()

    def select_every(target: LadderTarget) -> dict[str, dict[str, Any]]:
        with building_hplm(tiny_home, "acme/mood"):  # by somebody else
            rows = select_all(tiny_home, registry, texts, target, (), STACK, steps.append)
        return {row["id"]: row for row in rows}

    rows = select_every(target)
    assert rows.keys() == before.keys() and steps[-1] == Step("select", len(before), len(before))
    assert "being built by another process" in rows["acme/mood"]["outcome"]
    selected = {name for name, row in rows.items() if row["outcome"] == "selected"}
    assert "acme/topic" in selected and "it is unknown which texts" in rows["acme/topic"]["warnings"]
    assert {name: row["version"] - before[name] for name, row in rows.items()} == {
        name: int(name in selected) for name in before
    }
    again = select_every(target)
    assert {name for name, row in again.items() if row["outcome"].startswith("keeps its ladder: ")} == selected
    assert all(again[name]["version"] == rows[name]["version"] for name in selected)
    other = select_every(LadderTarget(agreement=0.8))
    assert other["acme/topic"] == again["acme/topic"]


def test_what_no_hplm_could_be_selected_by_is_said_once(tiny_home: Home, tmp_path: Path) -> None:
    registry, texts = Registry.open(tiny_home), plain(tmp_path / "plain.txt", 300, seed=916)
    with pytest.raises(InvalidArgumentError, match="needs labels"):
        select_all(tiny_home, registry, texts, LadderTarget(), (), STACK, ignore)
    with pytest.raises(TrainingDataError, match="is no file"):
        missing = UnlabelledFile(tmp_path / "none.txt")
        select_all(tiny_home, registry, missing, LadderTarget(agreement=0.9), (), STACK, ignore)


@pytest.mark.parametrize(("count", "needed"), [(60, 200), (3, 200), (1, 200)])
def test_too_few_texts_without_labels(tiny_home: Home, tmp_path: Path, count: int, needed: int) -> None:
    selecting = Selecting("acme/topic", plain(tmp_path / "plain.txt", count, seed=913), Target.of(agreement=0.8))
    with pytest.raises(TrainingDataError, match=f"different texts.* takes at least {needed}"):
        select_ladder(tiny_home, Registry.open(tiny_home), selecting, STACK, ignore)


@pytest.mark.parametrize(
    ("count", "target", "needed"), [(1, EASY, 100), (50, EASY, 100), (250, Target.of(max_drop=1), 288)]
)
def test_too_few_texts_are_said_and_how_many_would_do(
    tiny_home: Home, train: Path, tmp_path: Path, count: int, target: Target, needed: int
) -> None:
    few = written(tmp_path / "few.jsonl", "topic", count, seed=902)
    with pytest.raises(TrainingDataError, match=f"takes at least {needed}"):
        select(tiny_home, train, few, target)


def test_labels_of_another_task(tiny_home: Home, train: Path, held_out: Path, tmp_path: Path) -> None:
    """They could never be harmed, and would certify whatever they are."""
    foreign = written(tmp_path / "mood.jsonl", "mood", 400, seed=903)
    for files in ((train, foreign), (foreign, held_out)):
        with pytest.raises(TrainingDataError, match="has label 'glad', which hPLM 'acme/topic' does not know"):
            select(tiny_home, *files)


@pytest.mark.parametrize("after", [0, 2, 9, -1])
def test_a_layer_that_is_not_there(tiny_home: Home, train: Path, held_out: Path, after: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"after 1 to 1 of them, not after {after}"):
        select(tiny_home, train, held_out, after=(after,))


def test_too_many_layers_to_choose_from(tiny_home: Home, train: Path, held_out: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="at most 2 layers to choose from, not 3"):
        select(tiny_home, train, held_out, after=(1, 1, 1))
    with pytest.raises(InvalidArgumentError, match="layer 1 is named twice"):
        select(tiny_home, train, held_out, after=(1, 1))


def test_another_build_of_the_same_hplm_is_waited_for_by_nobody(tiny_home: Home, train: Path, held_out: Path) -> None:
    with building_hplm(tiny_home, "acme/topic"), pytest.raises(ConflictError, match="being built by another process"):
        select(tiny_home, train, held_out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_drop": 0}, "a drop of at most 0 points"),
        ({"max_drop": 100}, "a drop of at most 100 points"),
        ({"max_drop": float("nan")}, "max_drop must be a number"),
        ({"target_accuracy": 1.0}, "accuracy of at least 1"),
        ({"agreement": 1.5}, "agreement with the full answers of at least 1.5"),
        ({"max_drop": 1.0, "agreement": 0.9}, "one target at a time, not max_drop and agreement"),
        ({"certainty": 1.0}, "below 1, not 1.0"),
        ({"certainty": 0.2}, "at least 0.5"),
        ({"default_deadline": True}, "a default deadline needs its length"),
        ({"deadline_ms": 0}, "a number of milliseconds above 0, not 0"),
        ({"deadline_ms": 0.5, "default_deadline": True}, "a default deadline is 1 to 86400000 milliseconds"),
        ({"deadline_ms": 1e18, "default_deadline": True}, "as those that requests name, not 1e\\+18"),
    ],
)
def test_targets_that_mean_nothing(changes: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Target.of(**changes)


@pytest.mark.gpu
def test_a_ladder_is_selected_where_a_gpu_serves(tiny_home: Home, train: Path, held_out: Path) -> None:
    selecting = Selecting("acme/topic", LabelledFiles(train, held_out), EASY)
    stack = replace(STACK, device="cuda:0")
    found = select_ladder(tiny_home, Registry.open(tiny_home), selecting, stack, ignore)
    assert found.ladder is not None, found.reason

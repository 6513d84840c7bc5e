"""Creating and updating hPLMs of every task: what is published, what is refused, and what is not done twice."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.adapters.recipe import AdapterRecipe
from backends.errors import ConflictError, TrainingDataError, WorseError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import ignore, write_corpus, write_pairs, write_tagged, write_task, write_values
from builder.construct.domain.domains import update_domain
from builder.construct.hplm.hplms import (
    building_hplm,
    create_hplm,
    publish_artifact,
    update_hplm,
)
from builder.construct.hplm.teacher_data import TeacherData
from builder.construct.hplm.tune import TuneSettings
from builder.construct.tasks.dataset import TaskData
from builder.construct.tasks.examples import LabelledText
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.progress import Report, Step
from builder.settings.hplm import TAUGHT_EPOCHS
from short_requests import changed, new_hplm, next_domain, next_hplm

QUICK = TuneSettings(recipe=AdapterRecipe(width=4), epochs=2, learning_rate=1e-2)
LONGER = TuneSettings(recipe=AdapterRecipe(width=8), epochs=10, learning_rate=1e-2)
TAGGING = TuneSettings(
    recipe=AdapterRecipe(width=8, bottleneck_sites=("attention", "output")), epochs=20, learning_rate=3e-2, patience=20
)


@pytest.fixture
def registry(tiny_home: Home) -> Registry:
    return Registry.open(tiny_home)


def artifact(home: Home, entry: HplmEntry) -> HplmArtifact:
    return read_artifact(home.path / entry.folder, RootFolder(home.root("tiny")).fingerprint)


def mood_files(folder: Path, train: int = 60) -> dict[str, Path]:
    return dict(zip(("train", "dev"), write_task(folder, "mood", seed=70, train=train), strict=True))


def relabel(path: Path, change: Callable[[str], str]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "label": change(row["label"])}) + "\n" for row in rows))


def test_ner(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    train, dev = write_tagged(tmp_path, seed=7)
    request = new_hplm("new/ner", "tiny", "farm", train, dev, dev, tune=TAGGING)
    entry = create_hplm(tiny_home, registry, request, ignore)
    kinds = ("animals", "tools", "weather")
    assert entry.labels == ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))
    assert (entry.task, entry.pair) == ("ner", False)
    assert entry.metrics["main_metric"] == "f1"
    assert entry.metrics["dev_f1"] > 0.6
    assert entry.metrics["test_f1"] == entry.metrics["dev_f1"]
    stored = artifact(tiny_home, entry)
    assert (stored.task, stored.pooling, stored.pair) == ("ner", "none", False)


def test_pairs(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    train, dev = write_pairs(tmp_path / "p", seed=7)
    entry = create_hplm(tiny_home, registry, new_hplm("new/pair", "tiny", "farm", train, dev, tune=QUICK), ignore)
    assert (entry.task, entry.pair, entry.labels) == ("classification", True, ("glad", "sad"))
    assert artifact(tiny_home, entry).pair
    with pytest.raises(TrainingDataError, match=r"'new/pair' reads pairs of texts, but .* holds single texts"):
        update_hplm(tiny_home, registry, next_hplm("new/pair", **mood_files(tmp_path / "s")), ignore)


def test_regression(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    train, dev = write_values(tmp_path, seed=7)
    request = new_hplm("new/value", "tiny", "farm", train, dev, task="regression", tune=LONGER)
    entry = create_hplm(tiny_home, registry, request, ignore)
    assert (entry.task, entry.labels, entry.metrics["main_metric"]) == ("regression", (), "pearson")
    assert entry.metrics["dev_pearson"] > 0.4
    stored = artifact(tiny_home, entry)
    assert stored.head.weight.shape == (1, 64)
    assert 300 < float(stored.head.logits(torch.zeros(64))) < 1100
    again = update_hplm(tiny_home, registry, next_hplm("new/value", train, dev, tune={"epochs": 1}, force=True), ignore)
    assert again.metrics["previous_dev_pearson"] == pytest.approx(entry.metrics["dev_pearson"], abs=2e-4)


def test_leaks_are_counted_and_said(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    files = mood_files(tmp_path)
    lines = files["train"].read_text().splitlines(keepends=True)
    files["dev"].write_text("".join(lines[:7]) + files["dev"].read_text())
    steps: list[Step] = []
    request = new_hplm("new/one", "tiny", "farm", **files, test=files["train"], tune=QUICK)
    entry = create_hplm(tiny_home, registry, request, steps.append)
    assert entry.metrics["dev_in_train"] >= 7
    assert entry.metrics["test_in_train"] == 60
    (note,) = (step.note for step in steps if step.phase == "read the examples")
    assert f"{entry.metrics['dev_in_train']} of 67 dev texts" in note
    assert "60 of 60 test texts" in note


def test_garbage_collections_leave_builds_what_they_read(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt", 120, seed=5)
    for _ in range(3):
        update_domain(tiny_home, registry, next_domain("farm", "tiny", (corpus,)), ignore)

    def collect(step: Step) -> None:
        collect_garbage(tiny_home, registry, GarbageSettings(keep=0, grace_s=0))

    files = mood_files(tmp_path)
    entry = create_hplm(tiny_home, registry, new_hplm("new/one", "tiny", "farm@2", **files, tune=QUICK), collect)
    assert entry.domain.label == "farm@2"
    registry.delete_hplm("new/one")
    update_domain(tiny_home, registry, next_domain("farm", "tiny", (corpus,), parent="farm@2"), collect)
    kept = [version.entry.version for version in registry.domain_versions("tiny", "farm")]
    assert kept == [1, 2, 4, 5]  # 1 is under other hPLMs; 3 was nobody's, and went meanwhile


def test_an_update_counts_dev_texts_that_earlier_versions_were_trained_on(
    tiny_home: Home, registry: Registry, tmp_path: Path
) -> None:
    files, others = mood_files(tmp_path), mood_files(tmp_path / "others", train=80)
    first = create_hplm(tiny_home, registry, new_hplm("new/one", "tiny", "farm", **files, tune=QUICK), ignore)
    assert "dev_in_live_train" not in first.metrics
    texts = [json.loads(line)["text"] for line in files["train"].read_text().splitlines()]
    new = "".join(json.dumps({"text": f"unseen words {place}", "label": "glad"}) + "\n" for place in range(9))
    seen = "".join(json.dumps({"text": f"  {text.upper()} ", "label": "glad"}) + "\n" for text in texts[:5])
    fresh = [json.dumps({"text": f"{place} new", "label": "glad" if place % 2 else "sad"}) for place in range(80)]
    others["train"].write_text("".join(f"{line}\n" for line in fresh))
    others["dev"].write_text(new + seen)
    for update in ({}, {"from_scratch": True}):  # the second one's live version went on from the first
        steps: list[Step] = []
        request = next_hplm("new/one", **others, tune={"epochs": 1}, force=True, **update)
        entry = update_hplm(tiny_home, registry, request, steps.append)
        assert entry.metrics["dev_in_live_train"] == 5
        assert "dev_in_train" not in entry.metrics
        (note,) = (step.note for step in steps if step.phase == "read the examples")
        assert note == "warning: 5 of 14 dev texts were trained on for the live version"
    again = update_hplm(tiny_home, registry, next_hplm("new/one", **others, force=True), ignore)
    assert "dev_in_live_train" not in again.metrics  # because the live one began anew
    (tiny_home.path / again.folder / "trained_on.hashes").write_bytes(b"damaged")
    request = next_hplm("new/one", **files, test=others["train"], force=True)
    assert "test_in_live_train" not in update_hplm(tiny_home, registry, request, ignore).metrics


def test_an_update_goes_on_from_the_live_version(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    files = mood_files(tmp_path, train=160)
    first = create_hplm(tiny_home, registry, new_hplm("new/one", "tiny", "farm", **files, tune=LONGER), ignore)
    still = {"epochs": 1, "learning_rate": 1e-8}
    second = update_hplm(tiny_home, registry, next_hplm("new/one", **files, tune=still), ignore)
    assert second.version == 2
    assert second.metrics["dev_accuracy"] == pytest.approx(first.metrics["dev_accuracy"], abs=0.02)
    assert second.metrics["previous_version"] == 1
    assert second.metrics["previous_dev_accuracy"] == first.metrics["dev_accuracy"]
    assert second.metrics["compared"].startswith("no clear difference: accuracy ")
    assert second.metrics["compared"].endswith(" dev texts against version 1")
    weights = [artifact(tiny_home, each).adapters.named() for each in (first, second)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-2, atol=1e-4)
    scratch = next_hplm("new/one", **files, tune=still, from_scratch=True, force=True)
    assert update_hplm(tiny_home, registry, scratch, ignore).metrics["dev_accuracy"] < first.metrics["dev_accuracy"]
    wider = next_hplm("new/one", **files, tune={"recipe": {"width": 5}}, force=True)
    third = artifact(tiny_home, update_hplm(tiny_home, registry, wider, ignore))
    assert third.adapters.bottlenecks["attention"].width == 5
    assert third.origin["tune"]["epochs"] == 1  # what is not said stays as it was


def test_a_worse_version_is_published_only_by_force(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    files = mood_files(tmp_path, train=160)
    create_hplm(tiny_home, registry, new_hplm("new/one", "tiny", "farm", **files, tune=LONGER), ignore)
    before = registry.hplm("new/one")
    relabel(files["train"], lambda label: "sad" if label == "glad" else "glad")
    request = next_hplm("new/one", **files, from_scratch=True)
    with pytest.raises(WorseError) as caught:
        update_hplm(tiny_home, registry, request, ignore)
    assert str(caught.value).startswith("the new version of 'new/one' is worse: accuracy -0.")
    assert f"version 1, which has {before.metrics['dev_accuracy']:.4f}; nothing was published" in str(caught.value)
    assert "--force" in str(caught.value)
    assert registry.hplm("new/one") == before
    steps: list[Step] = []
    forced = update_hplm(tiny_home, registry, changed(request, force=True), steps.append)
    assert forced.version == 2
    assert forced.metrics["dev_accuracy"] < forced.metrics["previous_dev_accuracy"]
    assert forced.metrics["compared"].startswith("worse: accuracy -0.")
    assert "compare with version 1" in {step.phase for step in steps}
    assert len([step for step in steps if step.phase.startswith("tune")]) == 1  # the tuning is not done again
    assert not list(tiny_home.bank("tiny", "new/one", 2).parent.glob(".new--one*"))


def test_labels_change_only_where_that_is_wanted(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    files = mood_files(tmp_path, train=160)
    first = create_hplm(tiny_home, registry, new_hplm("new/one", "tiny", "farm", **files, tune=LONGER), ignore)
    for path in files.values():
        relabel(path, lambda label: "angry" if label == "sad" else label)
    request = next_hplm("new/one", **files, tune={"epochs": 1, "learning_rate": 1e-8})
    with pytest.raises(TrainingDataError, match="'new/one': added 'angry'; removed 'sad'; --labels-may-change allows"):
        update_hplm(tiny_home, registry, request, ignore)
    relabelled = update_hplm(tiny_home, registry, changed(request, labels_may_change=True, force=True), ignore)
    assert relabelled.labels == ("angry", "glad")
    heads = [artifact(tiny_home, each).head for each in (first, relabelled)]
    torch.testing.assert_close(heads[1].weight[1], heads[0].weight[0], rtol=1e-2, atol=1e-4)  # glad
    assert not torch.allclose(heads[1].weight[0], heads[0].weight[1], rtol=1e-2, atol=1e-2)


def test_rows_of_new_labels_are_the_same_whatever_was_drawn_before(
    tiny_home: Home, registry: Registry, tmp_path: Path
) -> None:
    files = mood_files(tmp_path)
    create_hplm(tiny_home, registry, new_hplm("new/one", "tiny", "farm", **files, tune=QUICK), ignore)
    for path in files.values():
        relabel(path, lambda label: "angry" if label == "sad" else label)
    heads = []
    for seed in (1, 2):
        home = Home(Path(shutil.copytree(tiny_home.path, tmp_path / f"home{seed}")))
        torch.manual_seed(seed)
        request = next_hplm("new/one", **files, labels_may_change=True, force=True)
        heads.append(artifact(home, update_hplm(home, Registry.open(home), request, ignore)).head)
    assert torch.equal(heads[0].weight, heads[1].weight)


def test_a_version_whose_labels_lack_o_can_be_updated(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    """Earlier releases imported such."""
    train, dev = write_tagged(tmp_path, seed=7)
    tune = replace(QUICK, epochs=1)
    first = create_hplm(tiny_home, registry, new_hplm("new/ner", "tiny", "farm", train, dev, tune=tune), ignore)
    made = artifact(tiny_home, first)
    head = replace(made.head, weight=made.head.weight[1:], bias=made.head.bias[1:])
    imported = replace(made, hplm="new/imported", labels=made.labels[1:], head=head)
    with building_hplm(tiny_home, imported.hplm):
        publish_artifact(tiny_home, registry, imported, registry.domain("tiny", "farm"), {})
    request = next_hplm("new/imported", train, dev, labels_may_change=True, force=True)
    assert update_hplm(tiny_home, registry, request, ignore).labels == first.labels


def test_an_update_moves_to_the_live_domain_unless_it_is_pinned(
    tiny_home: Home, registry: Registry, tmp_path: Path
) -> None:
    files = mood_files(tmp_path)
    create_hplm(tiny_home, registry, new_hplm("new/one", "tiny", "farm", **files, tune=QUICK), ignore)
    old = registry.domain("tiny", "farm")
    registry.publish_domain("tiny", "farm", old.folders[0], registry.domain("tiny", "general"), {})
    request = next_hplm("new/one", **files, force=True)
    assert update_hplm(tiny_home, registry, request, ignore).domain.label == "farm@2"
    registry.pin_hplm("new/one", 1)
    assert update_hplm(tiny_home, registry, request, ignore).domain.label == "farm@1"
    moved = update_hplm(tiny_home, registry, changed(request, domain="street"), ignore)
    assert moved.domain.label == "street@1"


def test_a_search_tries_the_asked_for_first_and_keeps_the_best(
    tiny_home: Home, registry: Registry, tmp_path: Path
) -> None:
    class Killed(Exception):  # noqa: N818 - not an error of ours
        pass

    def kill_in_third(step: Step) -> None:
        if step.phase.startswith("trial 3") and step.done == 3:
            raise Killed

    request = new_hplm("new/one", "tiny", "farm", **mood_files(tmp_path), tune=QUICK, search=4)
    with pytest.raises(Killed):
        create_hplm(tiny_home, registry, request, kill_in_third)
    steps: list[Step] = []
    entry = create_hplm(tiny_home, registry, request, steps.append)
    per_trial = [
        len([step for step in steps if step.phase.startswith(f"trial {number} of 4")]) for number in range(1, 5)
    ]
    assert per_trial[:2] == [1, 1]  # done before
    assert min(per_trial[2:]) > 1
    trials = entry.metrics["search"]
    assert len(trials) == 4
    assert (trials[0]["learning_rate"], trials[0]["width"]) == (QUICK.learning_rate, 4)
    assert entry.metrics["dev_accuracy"] == max(trial["accuracy"] for trial in trials)
    assert len({trial["learning_rate"] for trial in trials}) == 4
    whole = create_hplm(tiny_home, registry, changed(request, id="new/two"), ignore)
    assert whole.metrics["search"] == trials


def test_texts_are_looked_up_once(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    request = new_hplm("new/one", "tiny", "farm", **mood_files(tmp_path), tune=QUICK)
    phases: list[set[str]] = []
    for number in ("one", "two"):
        steps: list[Step] = []
        create_hplm(tiny_home, registry, changed(request, id=f"new/{number}"), steps.append)
        phases.append({step.phase for step in steps})
    assert {"look up the train texts", "look up the dev texts"} <= phases[0]
    assert phases[1] == {"tune adapters and head"}


def test_a_teacher_is_asked_for_the_training_examples(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    asked: list[tuple[int, TuneSettings]] = []

    class OfOneMind:
        unlabelled = None

        def __call__(self, data: TaskData, pupil: TuneSettings, report: Report) -> TeacherData:
            asked.append((len(data.train), pupil))
            examples = [*data.train, LabelledText("of the teacher's own", "sad")]
            return TeacherData(examples, [torch.tensor([[9.0, 0.0]])] * len(examples))  # glad, whatever the text

    tune = replace(QUICK, distil_weight=1.0, epochs=4)
    request = new_hplm("new/one", "tiny", "farm", **mood_files(tmp_path), tune=tune)
    entry = create_hplm(tiny_home, registry, request, ignore, OfOneMind())
    assert asked == [(60, tune)]
    dev = [json.loads(line)["label"] for line in request.dev.read_text().splitlines()]
    assert entry.metrics["dev_accuracy"] == pytest.approx(dev.count("glad") / len(dev), abs=1e-4)
    (tmp_path / "dev.jsonl").write_text('{"text": "of the teacher\'s own", "label": "sad"}\n' + request.dev.read_text())
    update = next_hplm("new/one", request.train, tmp_path / "dev.jsonl", tune={"epochs": 1}, force=True)
    assert update_hplm(tiny_home, registry, update, ignore).metrics["dev_in_live_train"] == 1
    create_hplm(
        tiny_home, registry, new_hplm("new/two", "tiny", "farm", request.train, request.dev), ignore, OfOneMind()
    )
    assert asked[-1] == (60, TuneSettings(epochs=TAUGHT_EPOCHS))


def test_two_creations_of_one_hplm_at_once(tiny_home: Home, registry: Registry, tmp_path: Path) -> None:
    request = new_hplm("new/one", "tiny", "farm", **mood_files(tmp_path), tune=QUICK)
    at_work, go_on = threading.Event(), threading.Event()

    def wait(step: Step) -> None:
        at_work.set()
        go_on.wait()

    thread = threading.Thread(target=create_hplm, args=(tiny_home, registry, request, wait))
    thread.start()
    at_work.wait()
    try:
        with pytest.raises(ConflictError, match="'new/one' is being built by another process"):
            create_hplm(tiny_home, Registry.open(tiny_home), request, ignore)
    finally:
        go_on.set()
        thread.join()
    with pytest.raises(ConflictError, match="exists already"):
        create_hplm(tiny_home, registry, request, ignore)
    assert registry.hplm("new/one").version == 1


def test_a_search_of_nothing_is_refused(tmp_path: Path) -> None:
    for request in (new_hplm("a/b", "r", "d", tmp_path, tmp_path), next_hplm("a/b", tmp_path, tmp_path)):
        with pytest.raises(ValidationError, match="search"):
            changed(request, search=0)

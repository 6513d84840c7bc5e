"""`hplm students add`: what is published beside the live version's weights, and what is rejected."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.head import Head
from backends.adapters.student_adapters import STUDENT_FILES, StudentAdapters, read_student_adapters
from backends.errors import (
    ConflictError,
    CorruptFileError,
    InvalidArgumentError,
    OtherStudentsError,
    TrainingDataError,
)
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, read_students
from bench.kit.random_students import random_students
from bench.kit.tiny_home import ignore, write_corpus, write_pairs, write_tagged, write_task, write_values
from builder.construct.hplm.hplms import building_hplm, create_hplm, publish_artifact, publish_linked
from builder.construct.students import unchanged
from builder.construct.students.add import add_students
from builder.construct.students.make import make_students
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.lifecycle.rollback import rollback_hplm
from builder.lifecycle.verification import verify_home
from builder.progress import Step
from builder.requests.hplms import CreateHplm
from builder.requests.students import AddStudents, MakeStudents
from builder.settings.students import StudentSettings
from seeds import SEED

TUNE = {"epochs": 1, "recipe": {"rank": 4}}
TOPIC, TRAIN = "acme/topic", 32


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_task(tmp_path / "topic", "topic", seed=100, train=TRAIN)


@pytest.fixture
def students(tiny_home: Home) -> StudentSet:
    root = RootFolder(tiny_home.root("tiny"))
    return random_students(root, 2, 1, torch.Generator().manual_seed(SEED))


def add(home: Home, files: tuple[Path, Path], id: str = TOPIC, **changes: Any) -> HplmEntry:
    report = changes.pop("report", ignore)
    request = AddStudents(id=id, train=files[0], dev=files[1], **{"tune": TUNE, **changes})
    return add_students(home, Registry.open(home), request, report)


def stored(home: Home, entry: HplmEntry) -> StudentAdapters:
    """What servers read, checked as they check it."""
    root = RootFolder(home.root("tiny"))
    folder, student_set = home.path / entry.folder, read_students(root)
    assert student_set is not None
    found = read_artifact(folder, root.fingerprint).with_students(read_student_adapters(folder), student_set).students
    assert found is not None
    return found


def test_students_are_a_version_with_the_same_weights(
    tiny_home: Home, tmp_path: Path, files: tuple[Path, Path]
) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt", 300, seed=3)
    settings = StudentSettings(count=2, layers=1, steps=30, tokens_per_batch=256)
    make_students(
        tiny_home, Registry.open(tiny_home), MakeStudents(root="tiny", corpus=[corpus], settings=settings), ignore
    )
    before = Registry.open(tiny_home).hplm(TOPIC)
    entry = add(tiny_home, files, tune={"epochs": 4, "learning_rate": 1e-2})
    assert entry == Registry.open(tiny_home).hplm(TOPIC) and entry.version == 2
    old, new = (tiny_home.path / each.folder for each in (before, entry))
    changed = {
        path.name for path in new.iterdir() if not ((old / path.name).exists() and path.samefile(old / path.name))
    }
    assert changed == {*STUDENT_FILES, "trained_on.hashes", "students_chosen_by.hashes"}
    figures, own = entry.metrics["students"], stored(tiny_home, entry)
    assert (own.best, len(own.heads)) == (figures["best"], 2) == (entry.best_students, 2)
    assert [step.dev_score for step in own.steps] == [figures["dev_1"], figures["dev_2"]]
    assert figures["dev_full"] == pytest.approx(before.metrics["dev_accuracy"], abs=0.02)
    assert min(figures["dev_1"], figures["dev_2"]) > figures["dev_full"] - 0.15
    assert all(0.05 <= step.temperature <= 20 for step in own.steps)
    assert {
        name: before.metrics[name] for name in before.metrics if name != "size_bytes"
    }.items() <= entry.metrics.items()
    assert verify_home(tiny_home, Registry.open(tiny_home), ignore).damaged == ()
    assert not [*new.parent.glob(".*students*")]
    rolled = rollback_hplm(tiny_home, Registry.open(tiny_home), TOPIC)
    assert rolled.best_students == 0 and read_student_adapters(tiny_home.path / rolled.folder) is None


def test_an_hplm_is_asked_once_for_what_all_students_learn(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path]
) -> None:
    """Another set learns the same, and so does another try; other texts, and another hPLM, are asked for anew."""
    phase, seen = "answer with all layers", list[Step]()

    def asked(id: str = TOPIC, **changes: Any) -> bool:
        seen.clear()
        add(tiny_home, files, id, report=seen.append, **changes)
        return any(step.phase == phase for step in seen)

    assert asked()
    first = stored(tiny_home, Registry.open(tiny_home).hplm(TOPIC))
    assert not asked()
    again = stored(tiny_home, Registry.open(tiny_home).hplm(TOPIC))
    for name, tensor in first.adapters.named().items():
        assert torch.equal(again.adapters.named()[name], tensor)
    random_students(RootFolder(tiny_home.root("tiny")), 1, 1, torch.Generator().manual_seed(SEED + 1))
    assert not asked()
    extra = files[0].with_name("extra.txt")
    extra.write_text("the barley was cut in the rain\n" * 3 + "a ewe and her lamb\n")
    assert asked(unlabelled=extra)
    request = CreateHplm(
        id="acme/new", root="tiny", domain="farm", task="classification", train=files[0], dev=files[1], tune=TUNE
    )
    create_hplm(tiny_home, Registry.open(tiny_home), request, ignore)
    assert asked("acme/new") and not asked("acme/new")


@pytest.mark.parametrize(
    ("write", "task"), [(write_tagged, "ner"), (write_pairs, "classification"), (write_values, "regression")]
)
@pytest.mark.parametrize("width", [64, 32])
def test_all_tasks_have_students(
    tiny_home: Home,
    tmp_path: Path,
    width: int,
    write: Callable[..., tuple[Path, Path]],
    task: Any,
) -> None:
    students = random_students(RootFolder(tiny_home.root("tiny")), 2, 1, torch.Generator().manual_seed(SEED), width)
    files = write(tmp_path / "task", seed=100, train=TRAIN)
    request = CreateHplm(
        id="acme/new", root="tiny", domain="farm", task=task, train=files[0], dev=files[1], tune={**TUNE, "epochs": 2}
    )
    create_hplm(tiny_home, Registry.open(tiny_home), request, ignore)
    entry = add(tiny_home, files, "acme/new")
    own = stored(tiny_home, entry)
    assert own.set_fingerprint == students.fingerprint and 1 <= own.best <= 2
    assert (task == "regression") == all(step.temperature == 1.0 for step in own.steps)
    assert {head.weight.dtype for head in own.heads} == {torch.float32 if task == "regression" else torch.float16}
    assert {head.hidden_size for head in own.heads} == {(4 if write is write_pairs else 1) * width}


def test_an_hplm_that_was_not_tuned_here_has_students(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path]
) -> None:
    """As imported ones, with an entrance, a dense head and no texts."""
    registry, root = Registry.open(tiny_home), RootFolder(tiny_home.root("tiny"))
    live = registry.hplm(TOPIC)
    artifact = read_artifact(tiny_home.path / live.folder, root.fingerprint)
    dense = torch.randn(8, 64) / 8, torch.randn(8)
    foreign = replace(artifact, hplm="acme/foreign", head=Head(torch.randn(3, 8), torch.zeros(3), *dense), origin={})
    with building_hplm(tiny_home, "acme/foreign"):
        publish_artifact(tiny_home, registry, foreign, live.domain, {})
    entry = add(tiny_home, files, "acme/foreign")
    own = stored(tiny_home, entry)
    assert all(head.dense_weight is not None for head in own.heads)
    assert entry.metrics["students"]["texts"] == 3 * TRAIN
    assert TrainedTexts.read(tiny_home.path / entry.folder).hashes.size > TRAIN


def test_texts_without_labels_teach_too(
    tiny_home: Home, tmp_path: Path, students: StudentSet, files: tuple[Path, Path]
) -> None:
    plain = write_corpus(tmp_path / "plain.txt", 80, seed=77)
    figures = add(tiny_home, files, unlabelled=plain).metrics["students"]
    assert 60 < figures["unlabelled_texts"] <= 80 and figures["texts"] == TRAIN + figures["unlabelled_texts"]


def test_a_killed_tuning_goes_on_and_the_live_version_serves(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path]
) -> None:
    tune = {**TUNE, "epochs": 2}
    expected = stored(tiny_home, add(tiny_home, files, tune=tune))
    rollback_hplm(tiny_home, Registry.open(tiny_home), TOPIC)
    seen: list[Step] = []

    def killed(step: Step) -> None:
        seen.append(step)
        if step.phase.startswith("tune") and step.done > step.total / 2 + 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add(tiny_home, files, tune=tune, report=killed)
    live = Registry.open(tiny_home).hplm(TOPIC)
    assert live.version == 1 and live.best_students == 0
    after: list[Step] = []
    entry = add(tiny_home, files, tune=tune, report=after.append)
    own = stored(tiny_home, entry)
    first = next(step.done for step in after if step.phase.startswith("tune"))
    assert first > 1, "it began anew"
    assert all(torch.equal(one, own.adapters.named()[name]) for name, one in expected.adapters.named().items())


def test_dev_texts_that_were_trained_on_are_counted_and_said(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """They flatter the scores that the number of students is chosen by, and the confidences."""
    assert "dev_in_live_train" not in add(tiny_home, files).metrics["students"]
    others, steps = write_task(tmp_path / "others", "topic", seed=300, train=TRAIN), list[Step]()
    found = add(tiny_home, (others[0], files[0]), report=steps.append).metrics["students"]
    assert found["dev_in_live_train"] == TRAIN
    assert any("were trained on for the live version" in step.note for step in steps)


def test_students_that_are_added_twice_are_those_added_last(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path]
) -> None:
    first = add(tiny_home, files)
    second = add(tiny_home, files, tune={**TUNE, "seed": 3})
    assert (first.version, second.version) == (2, 3)
    one, other = (stored(tiny_home, entry).adapters.named() for entry in (first, second))
    assert any(not torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_verification_says_where_students_are_missing(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path]
) -> None:
    entry = add(tiny_home, files)
    (tiny_home.path / entry.folder / STUDENT_FILES[0]).unlink()
    damaged = verify_home(tiny_home, Registry.open(tiny_home), ignore).damaged
    assert [each.folder for each in damaged] == [entry.folder] and "students" in damaged[0].complaint


def test_a_root_without_students_has_none_to_add(tiny_home: Home, files: tuple[Path, Path]) -> None:
    with pytest.raises(InvalidArgumentError, match="'hplm students make tiny' makes some"):
        add(tiny_home, files)


def test_damaged_students_are_said(tiny_home: Home, students: StudentSet, files: tuple[Path, Path]) -> None:
    (students.path / "layers.safetensors").write_bytes(b"short")
    with pytest.raises(CorruptFileError, match=r"layers\.safetensors"):
        add(tiny_home, files)
    assert Registry.open(tiny_home).hplm(TOPIC).version == 1


def test_files_that_do_not_fit_the_hplm_are_rejected(tiny_home: Home, tmp_path: Path, students: StudentSet) -> None:
    mood, pairs = write_task(tmp_path / "mood", "mood", 1, TRAIN), write_pairs(tmp_path / "pairs", 1, TRAIN)
    with pytest.raises(TrainingDataError, match="label 'glad', which hPLM 'acme/topic' does not know"):
        add(tiny_home, mood)
    with pytest.raises(TrainingDataError, match="pairs of texts"):
        add(tiny_home, pairs)


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"recipe": {"entrance_width": 8}}, "no entrance"),
        ({"distil_weight": 0.5}, "distil_weight"),
        ({"epoch": 1}, "unknown"),
    ],
)
def test_settings_that_students_cannot_have_are_rejected(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path], tune: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        add(tiny_home, files, tune=tune)


def test_numbers_that_are_all_alike_are_rejected(tiny_home: Home, tmp_path: Path, students: StudentSet) -> None:
    files = write_values(tmp_path / "values", 1, TRAIN)
    request = CreateHplm(id="acme/worth", root="tiny", domain="farm", task="regression", train=files[0], dev=files[1])
    create_hplm(tiny_home, Registry.open(tiny_home), request.model_copy(update={"tune": TUNE}), ignore)
    files[0].write_text('{"text": "rain", "label": 1}\n{"text": "snow", "label": 1}\n')
    with pytest.raises(TrainingDataError, match="every label is 1"):
        add(tiny_home, files, "acme/worth")


def test_students_that_were_replaced_meanwhile_get_no_adapters(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path]
) -> None:
    def replaced(step: Step) -> None:
        if step.phase.startswith("tune"):
            random_students(RootFolder(tiny_home.root("tiny")), 1, 1, torch.Generator().manual_seed(SEED + 1))

    with pytest.raises(ConflictError, match="replaced meanwhile"):
        add(tiny_home, files, report=replaced)
    assert Registry.open(tiny_home).hplm(TOPIC).version == 1


def test_students_are_not_replaced_while_adapters_for_them_are_published(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement that ends between the last look at the students and the publication waits for its end."""
    settings = StudentSettings(count=1, layers=1, steps=2, tokens_per_batch=256)
    corpus = write_corpus(tmp_path / "corpus.txt", 300, seed=3)
    request = MakeStudents(root="tiny", corpus=[corpus], settings=settings, replace=True)
    replacement = threading.Thread(target=make_students, args=(tiny_home, Registry.open(tiny_home), request, ignore))
    waits = threading.Event()
    monkeypatch.setattr(unchanged.LOGGER, "info", lambda *_: waits.set())

    def published(*arguments: Any) -> HplmEntry:
        replacement.start()
        assert waits.wait(30)
        entry = publish_linked(*arguments)
        assert stored(tiny_home, entry).set_fingerprint == students.fingerprint
        return entry

    monkeypatch.setattr("builder.construct.students.add.publish_linked", published)
    entry = add(tiny_home, files)
    replacement.join(30)
    assert entry.version == 2
    with pytest.raises(OtherStudentsError):
        stored(tiny_home, entry)


def test_the_next_version_with_the_same_weights_keeps_the_students(
    tiny_home: Home, students: StudentSet, files: tuple[Path, Path]
) -> None:
    """As a ladder's is."""
    registry, entry = Registry.open(tiny_home), add(tiny_home, files)
    with building_hplm(tiny_home, TOPIC):
        after = publish_linked(tiny_home, registry, entry, lambda folder: None, {"note": 1})
    assert after.version == 3 and after.best_students == entry.best_students and after.metrics["note"] == 1
    assert stored(tiny_home, after).steps == stored(tiny_home, entry).steps


def test_one_build_of_an_hplm_at_a_time(tiny_home: Home, students: StudentSet, files: tuple[Path, Path]) -> None:
    with building_hplm(tiny_home, TOPIC), pytest.raises(ConflictError):
        add(tiny_home, files)

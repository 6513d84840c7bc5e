"""`hplm students make`: what students learn, and what is published when."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.errors import (
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    StorageFullError,
    TrainingDataError,
)
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, read_students, students_folder
from backends.root.student_shape import CHAINED, PARALLEL, StudentShape, Wiring
from backends.storage import json_checksum, read_json, write_json
from bench.kit.tiny_home import ignore, write_corpus
from builder.construct.students.distil import checkpoint_paths
from builder.construct.students.make import INPUTS, make_students
from builder.construct.training.corpus import corpus_checksums
from builder.progress import Step
from builder.requests.students import MakeStudents
from builder.settings.students import StudentSettings

GEOMETRY = RootGeometry(50, 16, 32, 2, 1, 4, 32, 2, 1e-12, "gelu")
CHAIN_PHASE = "distil the chain of students"
QUICK = StudentSettings(
    count=2,
    layers=1,
    wiring=PARALLEL,
    steps=6,
    tokens_per_batch=256,
    warmup_steps=2,
    checkpoint_every=2,
    hard_share=0.5,
)


@pytest.fixture(autouse=True)
def fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Students of few texts and steps learn the same on all processors."""
    monkeypatch.setattr("builder.construct.training.device.cpu_multiplies_bf16", lambda: False)


def made(home: Home, **changes: Any) -> StudentSet:
    settings = replace(QUICK, **{key: changes.pop(key) for key in [*changes] if hasattr(QUICK, key)})
    report = changes.pop("report", ignore)
    return make_students(home, Registry.open(home), MakeStudents(root="tiny", settings=settings, **changes), report)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.txt", 300, seed=3)


def test_students_of_a_root_are_published(tiny_home: Home, corpus: Path) -> None:
    found = made(tiny_home, corpus=[corpus], steps=40)
    root = RootFolder(tiny_home.root("tiny"))
    read = read_students(root)
    assert read is not None and read.fingerprint == found.fingerprint
    assert (read.shape, len(read.fidelity)) == (StudentShape(2, 1, root.geometry.hidden_size), 2)
    assert all(0 < each["cosine"] <= 1 and 0 < each["error"] < 1 for each in read.fidelity)
    assert read.fidelity[1]["error"] < read.fidelity[0]["error"]
    read.verify()
    root.verify()
    assert not any(path.exists() for path in checkpoint_paths(tiny_home.root("tiny")))


def test_narrow_students_of_a_root_are_published(tiny_home: Home, corpus: Path) -> None:
    """Two layers of half the width, where two of the full width would save nothing."""
    found = made(tiny_home, corpus=[corpus], steps=60, layers=2, width=32)
    root = RootFolder(tiny_home.root("tiny"))
    read = read_students(root)
    assert read is not None and read.fingerprint == found.fingerprint
    assert read.shape == StudentShape(2, 2, 32) and 0.2 < read.shape.depth(root.geometry) < 0.4
    assert read.fidelity[1]["error"] < read.fidelity[0]["error"] < 0.9
    read.verify()
    assert made(tiny_home, corpus=[corpus], steps=60, layers=2, width=32).fingerprint == found.fingerprint


def test_a_chain_is_the_first_upper_layers(tiny_home: Home, corpus: Path) -> None:
    seen: list[Step] = []
    found = made(tiny_home, corpus=[corpus], wiring=CHAINED, report=seen.append)
    assert found.shape == StudentShape(2, 1, 64, CHAINED) and {step.phase for step in seen} == {
        "look up the corpus texts",
        "look up the held-out texts",
        "fit the maps of students",
    }
    for name, weights in RootFolder(tiny_home.root("tiny")).upper().state_dict().items():
        assert torch.equal(found.layers().state_dict()[name], weights)
    assert 10 * found.fidelity[1]["error"] < found.fidelity[0]["error"] < 0.9  # both together are all of its layers
    assert made(tiny_home, corpus=[corpus], wiring=CHAINED).fingerprint == found.fingerprint


def test_a_narrow_chain_learns_and_an_interrupted_one_goes_on(tiny_home: Home, corpus: Path) -> None:
    """All of it learns at once, for twice the steps of one student."""
    changes: dict[str, Any] = {"wiring": CHAINED, "layers": 2, "width": 32, "steps": 40, "corpus": [corpus]}

    def killed(step: Step) -> None:
        if step.phase == CHAIN_PHASE and step.done == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(tiny_home, report=killed, **changes)
    assert not students_folder(tiny_home.root("tiny")).exists()
    seen: list[Step] = []
    found = made(tiny_home, report=seen.append, **changes)
    done = [step.done for step in seen if step.phase == CHAIN_PHASE]
    assert done[0] > 40 and done[-1] == 80
    assert found.shape == StudentShape(2, 2, 32, CHAINED)
    assert all(0 < each["error"] < 0.9 for each in found.fidelity)
    assert not any(path.exists() for path in checkpoint_paths(tiny_home.root("tiny")))
    assert made(tiny_home, replace=True, **{**changes, "seed": 18}).fingerprint != found.fingerprint
    assert made(tiny_home, replace=True, **changes).fingerprint == found.fingerprint


def test_an_interrupted_distillation_ends_as_one_that_was_not(tiny_home: Home, corpus: Path, tmp_path: Path) -> None:
    whole = made(tiny_home, corpus=[corpus]).fingerprint
    others = made(tiny_home, corpus=[corpus], seed=18, replace=True).fingerprint

    def killed_at(phase: str, done: int) -> None:
        def report(step: Step) -> None:
            if step.phase == phase and step.done == done:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            made(tiny_home, corpus=[corpus], replace=True, report=report)
        read = read_students(RootFolder(tiny_home.root("tiny")))
        assert read is not None and read.fingerprint == others  # those before it serve

    for phase, done in (("distil student 1", 3), ("distil student 2", 5), ("distil all students together", 1)):
        killed_at(phase, done)
    seen: list[Step] = []
    assert made(tiny_home, corpus=[corpus], replace=True, report=seen.append).fingerprint == whole
    assert [step.done for step in seen if step.phase == "distil student 1"] == [QUICK.steps]  # all of it was done


def test_settings_of_what_does_not_learn_make_no_other_chain(tiny_home: Home, corpus: Path) -> None:
    found = made(tiny_home, corpus=[corpus], wiring=CHAINED)
    assert "steps" not in found.origin["settings"]
    assert made(tiny_home, corpus=[corpus], wiring=CHAINED, steps=9, hard_share=0.0).fingerprint == found.fingerprint
    few: list[Step] = []
    made(tiny_home, corpus=[corpus], wiring=CHAINED, max_texts=50, replace=True, report=few.append)
    assert 40 < max(step.total for step in few if step.phase == "fit the maps of students") <= 50


@pytest.mark.parametrize("wiring", [PARALLEL, CHAINED])
def test_students_that_bring_little_are_dropped(
    tiny_home: Home, corpus: Path, monkeypatch: pytest.MonkeyPatch, wiring: Wiring
) -> None:
    monkeypatch.setattr(StudentSettings, "shape", lambda self, root: StudentShape(2, 1, root.hidden_size, wiring))
    seen: list[Step] = []
    assert made(tiny_home, corpus=[corpus], count=None, least_gain=1.0, report=seen.append).shape.count == 1
    assert any("student 2 is dropped" in step.note for step in seen)
    assert made(tiny_home, corpus=[corpus], count=None, least_gain=0.0, steps=40, replace=True).shape.count == 2


@pytest.mark.parametrize(
    ("upper", "layers", "count"), [(2, 1, 1), (3, 1, 2), (4, 2, 1), (6, 2, 2), (8, 2, 3), (12, 2, 3)]
)
def test_sizes_by_default_cost_three_quarters_of_the_upper_layers_at_most(upper: int, layers: int, count: int) -> None:
    shape = StudentSettings().shape(replace(GEOMETRY, num_upper_layers=upper))
    assert (shape.layers, shape.count, shape.width) == (layers, count, GEOMETRY.hidden_size)


def test_students_are_replaced_only_where_that_is_wanted(tiny_home: Home, corpus: Path) -> None:
    first = made(tiny_home, corpus=[corpus]).fingerprint
    with pytest.raises(ConflictError, match="--replace"):
        made(tiny_home, corpus=[corpus], seed=18)
    assert made(tiny_home, corpus=[corpus], seed=18, replace=True).fingerprint != first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "1 to 8 students"),
        ({"count": 9}, "1 to 8 students"),
        ({"layers": 0}, "at least one layer"),
        ({"width": 0}, "at least one number wide"),
        ({"width": 128}, "at most as wide as the hidden rows of their root, 64 numbers, not 128"),
        ({"width": 24}, "multiple of 16, the width of their root's attention heads, not 24"),
        ({"steps": 0}, "steps must be positive"),
        ({"least_gain": 2.0}, "least_gain must lie between"),
        ({"stacking_weight": -1.0}, "cannot be negative"),
        ({"wiring": "knotted"}, "wiring 'knotted' of students is not known"),
        ({"layers": 2}, "saves nothing where there are 2 upper layers"),
        ({"count": 3}, "3 students of 1 layers cost more than the 2 upper layers"),
    ],
)
def test_impossible_sizes_are_rejected(tiny_home: Home, corpus: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        made(tiny_home, corpus=[corpus], **changes)
    assert not students_folder(tiny_home.root("tiny")).exists()


def made_from(home: Home, corpus: Path) -> None:
    """Let the root's manifest say what the root was made from."""
    path = home.root("tiny") / "manifest.json"
    content = read_json(path)
    content["origin"]["config"]["corpus"] = [str(corpus)]
    write_json(path, content)


def test_what_was_made_before_is_found(tiny_home: Home, corpus: Path) -> None:
    first, seen = made(tiny_home, corpus=[corpus]), list[Step]()
    for replace_them in (False, True):
        again = made(tiny_home, corpus=[corpus], replace=replace_them, report=seen.append)
        assert again.fingerprint == first.fingerprint and not seen
    (first.path / "maps.safetensors").write_bytes(b"short")
    with pytest.raises(ConflictError, match="--replace"):
        made(tiny_home, corpus=[corpus])
    made(tiny_home, corpus=[corpus], replace=True).verify()


def test_students_are_found_that_were_made_before_there_were_others(tiny_home: Home, corpus: Path) -> None:
    settings = {name: value for name, value in asdict(QUICK).items() if name not in ("width", "wiring")}
    named = {"root": RootFolder(tiny_home.root("tiny")).fingerprint, "corpus": corpus_checksums([corpus])}
    assert made(tiny_home, corpus=[corpus]).origin[INPUTS] == json_checksum({**named, "settings": settings})


def test_the_corpus_of_the_root_is_the_default(tiny_home: Home, corpus: Path) -> None:
    expected = made(tiny_home, corpus=[corpus])
    made_from(tiny_home, corpus)
    assert made(tiny_home, replace=True).fingerprint == expected.fingerprint
    assert expected.origin["corpus"] == [str(corpus)]


def test_corpora_that_cannot_be_learnt_from_are_rejected(tiny_home: Home, tmp_path: Path) -> None:
    empty, few = tmp_path / "empty.txt", write_corpus(tmp_path / "few.txt", 20, seed=3)
    empty.write_text("\n\n")
    made_from(tiny_home, tmp_path / "gone.txt")
    for files, error in (
        ([empty], InvalidArgumentError),
        ([few], InvalidArgumentError),
        ([tmp_path / "none.txt"], NotFoundError),
        ([], TrainingDataError),
    ):
        with pytest.raises(error, match="corpus"):
            made(tiny_home, corpus=files)
    with pytest.raises(NotFoundError):
        make_students(tiny_home, Registry.open(tiny_home), MakeStudents(root="unknown"), ignore)


def test_students_that_cannot_be_written_leave_those_before_them(
    tiny_home: Home, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made(tiny_home, corpus=[corpus]).fingerprint

    def full(path: Path, content: dict[str, Any]) -> None:
        raise StorageFullError(f"no space left on the disk while writing {path}")

    with monkeypatch.context() as broken, pytest.raises(StorageFullError):
        broken.setattr("backends.root.student_set.write_json", full)
        made(tiny_home, corpus=[corpus], replace=True, seed=18)
    read = read_students(RootFolder(tiny_home.root("tiny")))
    assert read is not None and read.fingerprint == before
    assert [path.name for path in read.path.parent.glob(".students.building")] == []
    assert all(path.exists() for path in checkpoint_paths(tiny_home.root("tiny"))[:2])
    seen: list[Step] = []
    made(tiny_home, corpus=[corpus], replace=True, seed=18, report=seen.append)
    assert [step.done for step in seen if step.phase == "distil student 1"] == [QUICK.steps]

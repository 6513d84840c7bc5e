"""`hplm students make`: what students learn, and what is published when."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from backends.errors import (
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    StorageFullError,
    TrainingDataError,
)
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, read_students, students_folder
from backends.root.student_shape import StudentShape
from backends.root.upper import UpperLayers
from backends.storage import json_checksum, read_json, write_json
from bench.kit.tiny_home import ignore, write_corpus
from builder.construct.hplm.state_rows import StateRows
from builder.construct.students.boosting import Boosting
from builder.construct.students.distil import checkpoint_paths
from builder.construct.students.hidden_texts import HiddenBatch, HiddenTexts, numbered_token_batches, token_batches
from builder.construct.students.make import INPUTS, make_students
from builder.construct.training.corpus import corpus_checksums
from builder.progress import Step
from builder.requests.students import MakeStudents
from builder.settings.students import StudentSettings
from seeds import SEED

GEOMETRY = RootGeometry(50, 16, 32, 2, 1, 4, 32, 2, 1e-12, "gelu")
CPU = torch.device("cpu")
QUICK = StudentSettings(
    count=2, layers=1, steps=6, tokens_per_batch=256, warmup_steps=2, checkpoint_every=2, hard_share=0.5
)


@pytest.fixture(autouse=True)
def fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow references compute in fp32 too."""
    monkeypatch.setattr("builder.construct.training.device.cpu_multiplies_bf16", lambda: False)


def hidden_texts(count: int = 12) -> HiddenTexts:
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(2, 20, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    hidden = rng.normal(size=(offsets[-1], 16)).astype(np.float16)
    return HiddenTexts(StateRows(hidden, offsets, lengths), CPU)


def boosting(count: int = 3, layers: int = 2, width: int = 16) -> Boosting:
    torch.manual_seed(SEED)
    made = Boosting(UpperLayers(GEOMETRY), GEOMETRY, StudentShape(count, layers, width))
    for student in range(count):
        made.start(student)
    return made


def shaken(made: Boosting) -> Boosting:
    """Students that say something, each something else."""
    with torch.no_grad():
        for weights in [*made.layers.parameters(), *made.maps.parameters(), *made.inputs.parameters()]:
            weights.add_(torch.randn(weights.shape) / 20)
    return made


def alone(made: Boosting, batch: HiddenBatch, row: int) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
    """One text by itself: the upper layers' states, and those after each layer of each student."""
    length = int(batch.mask[row].sum())
    mask, hidden = torch.ones(1, length, dtype=torch.bool), batch.hidden[row : row + 1, :length]
    target = hidden
    for layer in made._upper.layers:
        target = layer(target, padded_attention(2, mask))
    students, attend = [], padded_attention(made.shape.width // 8, mask)
    for student in range(made.shape.count):
        states, found = entered(made, student, hidden), []
        for index in made.shape.span(student):
            states = made.layers.layers[index](states, attend)
            found.append(states[0])
        students.append(found)
    return target[0], students


def entered(made: Boosting, student: int, hidden: torch.Tensor) -> torch.Tensor:
    if made.shape.width == GEOMETRY.hidden_size:
        return hidden
    return hidden @ made.inputs[student].weight.T + made.inputs[student].bias


def reference_loss(made: Boosting, batch: HiddenBatch, student: int, stacking: float) -> torch.Tensor:
    """Loop over texts: mean squares over all tokens in units of the variance over all tokens."""
    targets, befores, says, middles = [], [], [], []
    for row in range(len(batch.hidden)):
        target, students = alone(made, batch, row)
        mapped = [states[-1] @ made.maps[k].weight.T + made.maps[k].bias for k, states in enumerate(students)]
        targets.append(target)
        befores.append(sum(mapped[:student], torch.zeros_like(target)))
        says.append(mapped[student])
        middles.append(students[student][(made.shape.layers + 1) // 2 - 1])
    target, before, say, middle = (torch.cat(each) for each in (targets, befores, says, middles))
    loss = ((target - before - say) ** 2).mean() / target.var()
    if student and made.shape.layers > 1:
        below = entered(made, student, before).detach()
        loss = loss + stacking * ((below - middle) ** 2).mean() / below.var()
    return loss


@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_boosting_losses_are_those_of_a_slow_reference(layers: int, width: int) -> None:
    made, batch = shaken(boosting(layers=layers, width=width)), hidden_texts().batch(np.arange(5))
    for student in range(made.shape.count):
        for stacking in (0.0, 0.7):
            expected = reference_loss(made, batch, student, stacking)
            torch.testing.assert_close(made.boosting_loss(batch, student, stacking), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [16, 8])
def test_joint_gradients_are_those_of_all_prefixes_added_up(width: int) -> None:
    made, batch = shaken(boosting(width=width)), hidden_texts().batch(np.arange(5))
    learning = made.parameters_of(range(3))
    made.joint_loss(batch, 3).backward()
    together = {name: one.grad.clone() for name, one in learning.items() if one.grad is not None}
    for one in learning.values():
        one.grad = None
    for count in (1, 2, 3):
        rows = [alone(made, batch, row) for row in range(len(batch.hidden))]
        target = torch.cat([one for one, _ in rows]).detach()
        says = [sum(made.maps[k](students[k][-1]) for k in range(count)) for _, students in rows]
        (((torch.cat(says) - target) ** 2).mean() / target.var()).backward()
    assert together.keys() == learning.keys()
    for name, one in learning.items():
        torch.testing.assert_close(together[name], one.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("width", [16, 8])
def test_a_new_student_changes_nothing_yet(width: int) -> None:
    texts = hidden_texts()
    made = boosting(width=width)
    first, *others = made.fidelity(texts, 3)
    assert others == [first] * 2
    made = shaken(made)
    before = made.fidelity(texts, 2)
    made.start(2)
    *_, last, added = made.fidelity(texts, 3)
    assert last == added == before[-1]


def test_fidelity_and_residuals_are_over_tokens() -> None:
    made, texts = shaken(boosting()), hidden_texts()
    batch = texts.batch(np.arange(len(texts)))
    targets, says = [], []
    for row in range(len(texts)):
        target, students = alone(made, batch, row)
        targets.append(target)
        says.append(sum(made.maps[k](students[k][-1]) for k in range(2)))
    target, said = torch.cat(targets), torch.cat(says)
    found = made.fidelity(texts, 2)[-1]
    assert found.error == pytest.approx(float(((said - target) ** 2).mean() / target.var(correction=0)), rel=1e-4)
    assert found.cosine == pytest.approx(float(functional.cosine_similarity(said, target, dim=-1).mean()), rel=1e-4)
    expected = [float(((one - other) ** 2).mean()) for one, other in zip(says, targets, strict=True)]
    np.testing.assert_allclose(made.residuals(texts, 2), expected, rtol=1e-4)


def test_a_narrow_student_starts_with_some_channels_of_the_last_upper_layers() -> None:
    """Its map takes every other channel of the rows; the first half of the heads is the only one that is left."""
    made, hidden = boosting(count=2, width=8), torch.randn(3, 16, generator=torch.Generator().manual_seed(SEED))
    source, own = made._upper.layers[-1], made.layers.layers[1]
    torch.testing.assert_close(made.inputs.enter(0, hidden), hidden[:, ::2])
    assert torch.equal(own.query_key_value.weight[8:16], source.query_key_value.weight[16:24, ::2])
    assert torch.equal(own.ffn_out.weight, source.ffn_out.weight[::2, ::2])
    assert torch.equal(own.ffn_norm.bias, source.ffn_norm.bias[::2])
    torch.testing.assert_close(made.maps[0](hidden[:, ::2])[:, ::2], hidden[:, ::2])
    assert not made.maps[0](hidden[:, ::2])[:, 1::2].any()
    assert torch.equal(made.inputs[0].weight, made.inputs[1].weight)


@pytest.mark.parametrize("width", [16, 8])
def test_only_named_students_learn(width: int) -> None:
    made = boosting(width=width)
    learning = made.parameters_of([1])
    assert {name for name in learning if name.startswith("inputs")} == (
        {"inputs.1.weight", "inputs.1.bias"} if width < 16 else set()
    )
    assert {name.split(".")[1] for name in learning if name.startswith("layers")} == {"2", "3"}
    assert {name for name in learning if name.startswith("maps")} == {"maps.1.weight", "maps.1.bias"}
    made.boosting_loss(hidden_texts().batch(np.arange(4)), 1, 1.0).backward()
    assert {id(one) for one in made.parameters() if one.grad is not None} == {id(one) for one in learning.values()}


@pytest.mark.parametrize("width", [16, 8])
def test_kept_students_are_the_first(width: int) -> None:
    made = shaken(boosting(width=width))
    shape, kept = made.kept(2)
    assert [len(kept.inputs), len(made.inputs)] == ([2, 3] if width < 16 else [0, 0])
    assert shape == StudentShape(2, 2, width) and len(kept.maps) == 2 and len(kept.layers.layers) == 4
    for index in range(4):
        assert torch.equal(kept.layers.layers[index].ffn_in.weight, made.layers.layers[index].ffn_in.weight)
    assert len(made.maps) == 3


def test_batches_hold_all_texts_and_no_more_tokens_than_they_may() -> None:
    lengths = np.random.default_rng(SEED).integers(1, 40, 100)
    batches = token_batches(lengths, np.arange(100), 128)
    assert sorted(np.concatenate(batches).tolist()) == list(range(100))
    assert all(len(batch) * (-(-max(lengths[batch]) // 8) * 8) <= 128 for batch in batches)


def test_batches_depend_on_their_step_only() -> None:
    lengths = np.random.default_rng(SEED).integers(1, 40, 60)
    groups = [(0.5, np.arange(60)), (0.5, np.arange(10))]
    whole = [*numbered_token_batches(lengths, groups, 128, 7, 0, 30)]
    rest = [*numbered_token_batches(lengths, groups, 128, 7, 12, 30)]
    assert len(whole) == 30 and len(rest) == 18
    for one, other in zip(whole[12:], rest, strict=True):
        np.testing.assert_array_equal(one, other)
    drawn = np.concatenate(whole)
    assert (drawn < 10).mean() > 0.3  # 10 of 60 in the mean, were all texts alike


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


def test_students_that_bring_little_are_dropped(tiny_home: Home, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StudentSettings, "shape", lambda self, root: StudentShape(2, 1, root.hidden_size))
    assert made(tiny_home, corpus=[corpus], count=None, least_gain=0.9).shape.count == 1
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


def test_students_of_full_width_are_found_that_were_made_before_there_were_narrow_ones(
    tiny_home: Home, corpus: Path
) -> None:
    settings = {name: value for name, value in asdict(QUICK).items() if name != "width"}
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

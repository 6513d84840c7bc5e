"""What an hPLM has for its root's students: read as written, and never used with other students."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from adapter_reference import KINDS, random_adapters, random_bottleneck
from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact, read_artifact
from backends.adapters.head import Head
from backends.adapters.host_bank import HostBank
from backends.adapters.pooling import POOLED_STATES
from backends.adapters.student_adapters import (
    STUDENT_FILES,
    StudentAdapters,
    StudentStep,
    read_student_adapters,
    write_student_adapters,
)
from backends.errors import (
    CorruptFileError,
    FingerprintMismatchError,
    FormatVersionError,
    HplmError,
    InvalidArgumentError,
)
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet
from backends.storage import read_json, write_json
from bench.kit.random_students import random_student_adapters, random_students, student_adapters_of
from seeds import SEED

COUNT, LAYERS = 2, 1
STUDENT_KINDS = [kind for kind in KINDS if kind not in ("entrance", "all")]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


@pytest.fixture
def topic(tiny_home: Home) -> HplmEntry:
    return Registry.open(tiny_home).hplm("acme/topic")


@pytest.fixture
def root(tiny_home: Home) -> RootFolder:
    return RootFolder(tiny_home.root("tiny"))


@pytest.fixture
def students(root: RootFolder) -> StudentSet:
    return random_students(root, COUNT, LAYERS, generator())


@pytest.fixture
def written(tiny_home: Home, topic: HplmEntry, root: RootFolder, students: StudentSet) -> StudentAdapters:
    folder = tiny_home.path / topic.folder
    own = random_student_adapters(students, read_artifact(folder, root.fingerprint), generator())
    write_student_adapters(folder, own)
    return own


def served(home: Home, entry: HplmEntry, root: RootFolder, students: StudentSet) -> HplmArtifact:
    sizes = root.geometry.hidden_size, root.geometry.num_upper_layers
    return HostBank(home, lambda _: True).with_students(entry, root.fingerprint, *sizes, students)


def test_servers_read_what_was_written(
    tiny_home: Home, topic: HplmEntry, root: RootFolder, students: StudentSet, written: StudentAdapters
) -> None:
    read = served(tiny_home, topic, root, students).students
    assert read is not None
    assert (read.set_fingerprint, read.steps, read.best) == (students.fingerprint, written.steps, COUNT)
    for name, tensor in written.adapters.named().items():
        assert torch.equal(read.adapters.named()[name], tensor.to(torch.bfloat16))
    for own, other in zip(written.heads, read.heads, strict=True):
        assert torch.equal(own.weight.half(), other.weight)
    assert read.size_bytes == pytest.approx(sum(2 * t.numel() for t in written.adapters.named().values()), rel=0.2)


def test_versions_without_students_have_none(
    tiny_home: Home, topic: HplmEntry, root: RootFolder, students: StudentSet
) -> None:
    assert read_student_adapters(tiny_home.path / topic.folder) is None
    assert served(tiny_home, topic, root, students).students is None


@pytest.mark.parametrize("kind", STUDENT_KINDS)
def test_all_kinds_of_parts_and_heads_are_stored(
    tiny_home: Home, topic: HplmEntry, students: StudentSet, kind: str
) -> None:
    torch.manual_seed(SEED)
    hidden = students.shape.width
    shapes = (1, 5), (1,), (5, hidden), (5,)
    heads = [Head(*(torch.randn(shape) for shape in shapes), activation="gelu") for _ in range(COUNT)]
    own = student_adapters_of(students, random_adapters(random.Random(SEED), students.geometry, kind), heads, best=1)
    folder = tiny_home.path / topic.folder
    write_student_adapters(folder, own)
    read = read_student_adapters(folder)
    assert read is not None
    read.require_fits(students, hidden, num_outputs=1)
    assert read.adapters.parts().keys() == own.adapters.parts().keys()
    for name, tensor in own.adapters.named().items():
        assert torch.equal(read.adapters.named()[name], tensor.to(torch.bfloat16))
    states = list(torch.randn(COUNT, 3, hidden))
    for count in range(1, COUNT + 1):  # one output is a regression's, whose heads stay in fp32
        expected = sum(head.logits(each) for head, each in zip(heads[:count], states[:count], strict=True))
        torch.testing.assert_close(read.logits(states[:count]), expected)


def damage(home: Home, entry: HplmEntry, how: str) -> type[Exception]:
    manifest, weights = (home.path / entry.folder / name for name in STUDENT_FILES)
    content = read_json(manifest)
    step = content["steps"][0]
    changes = {
        "newer": {"format_version": 99},
        "best": {"best": COUNT + 1},
        "none": {"best": 0},
        "temperature": {"steps": [{**step, "temperature": 0.0}] * COUNT},
        "infinite": {"steps": [{**step, "temperature": "inf"}] * COUNT},
        "a step less": {"steps": [step]},
        "a head less": {"steps": [step], "heads": content["heads"][:1], "best": 1},
        "unknown part": {"parts": [{"name": "bottleneck.roof", "width": 3}]},
        "another set": {"set_fingerprint": "f00d"},
    }
    if how == "truncated":
        manifest.write_text(manifest.read_text()[:30])
    elif how == "weights":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif how == "missing":
        weights.unlink()
    else:
        write_json(manifest, {**content, **changes[how]})
    return {"newer": FormatVersionError, "another set": FingerprintMismatchError}.get(how, CorruptFileError)


@pytest.mark.parametrize(
    "how",
    [
        "truncated",
        "weights",
        "missing",
        "newer",
        "best",
        "none",
        "temperature",
        "infinite",
        "a step less",
        "a head less",
        "unknown part",
        "another set",
    ],
)
def test_what_cannot_be_used_costs_the_answers_of_students_only(
    tiny_home: Home,
    topic: HplmEntry,
    root: RootFolder,
    students: StudentSet,
    written: StudentAdapters,
    how: str,
) -> None:
    error = damage(tiny_home, topic, how)
    artifact = read_artifact(tiny_home.path / topic.folder, root.fingerprint)
    with pytest.raises(error):
        artifact.with_students(read_student_adapters(tiny_home.path / topic.folder), students)
    with pytest.raises(HplmError, match="what this hPLM has for students is"):
        served(tiny_home, topic, root, students)
    sizes = root.geometry.hidden_size, root.geometry.num_upper_layers
    found = HostBank(tiny_home, lambda _: True).artifact(topic, root.fingerprint, *sizes)
    assert torch.equal(found.head.weight, artifact.head.weight)


def test_adapters_never_meet_the_students_of_another_set(
    tiny_home: Home, topic: HplmEntry, root: RootFolder, written: StudentAdapters, caplog: pytest.LogCaptureFixture
) -> None:
    others = random_students(root, COUNT, LAYERS, torch.Generator().manual_seed(SEED + 1))
    with pytest.raises(HplmError, match="for students is made for other students of its root"):
        served(tiny_home, topic, root, others)
    assert f"are for students {written.set_fingerprint}" in caplog.text


def test_adapters_of_other_sizes_do_not_fit(
    tiny_home: Home, topic: HplmEntry, root: RootFolder, students: StudentSet, written: StudentAdapters
) -> None:
    artifact = read_artifact(tiny_home.path / topic.folder, root.fingerprint)
    more_layers = random_adapters(random.Random(SEED), replace(students.geometry, num_upper_layers=7), "attention")
    wider = [Head(torch.randn(len(head.bias), 3), head.bias) for head in written.heads]
    for wrong in (replace(written, adapters=more_layers), replace(written, heads=tuple(wider))):
        with pytest.raises(CorruptFileError, match="fit"):
            artifact.with_students(wrong, students)
    assert POOLED_STATES[artifact.pooling] * root.geometry.hidden_size == written.heads[0].hidden_size


def test_students_have_no_entrance_and_finite_weights(
    tiny_home: Home, topic: HplmEntry, students: StudentSet, written: StudentAdapters
) -> None:
    entrance = AdapterSet(entrance=random_bottleneck(random.Random(SEED), 1, students.shape.width))
    with pytest.raises(InvalidArgumentError, match="no entrance"):
        replace(written, adapters=entrance)
    endless = written.adapters.map(lambda _, tensor: tensor * float("inf"))
    with pytest.raises(InvalidArgumentError, match="NaN or infinite"):
        write_student_adapters(tiny_home.path / topic.folder, replace(written, adapters=endless))
    with pytest.raises(InvalidArgumentError, match="positive"):
        replace(written, steps=(StudentStep(float("nan"), 0.5),) * COUNT)

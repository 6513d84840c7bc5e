"""Students of a root: what is written is read, and what does not belong to the root is rejected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backends.errors import (
    CorruptFileError,
    FingerprintMismatchError,
    FormatVersionError,
    HplmError,
    InvalidArgumentError,
)
from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from backends.root.student_set import StudentWeights, read_students, students_folder, write_students
from backends.root.student_shape import CHAINED, PARALLEL, StudentShape
from backends.storage import read_json, write_json
from bench.kit.random_root import random_root
from bench.kit.random_students import random_students
from seeds import SEED

GEOMETRY = RootGeometry(50, 16, 32, 2, 1, 3, 32, 2, 1e-12, "gelu")
COUNT, LAYERS = 3, 2


@pytest.fixture
def root(tmp_path: Path) -> RootFolder:
    return random_root(tmp_path / "mini", GEOMETRY, SEED)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


def test_students_are_read_as_they_were_written(root: RootFolder) -> None:
    assert read_students(root) is None
    shape = StudentShape(COUNT, LAYERS, 16)
    weights = StudentWeights.untrained(shape, GEOMETRY)
    folder = students_folder(root.path)
    folder.mkdir()
    fidelity = [{"cosine": 0.5 + number / 10} for number in range(COUNT)]
    fingerprint = write_students(folder, root, shape, weights, fidelity, {"steps": 3})
    read = read_students(root)
    assert read is not None
    assert (read.shape, read.fingerprint, read.fidelity) == (shape, fingerprint, tuple(fidelity))
    assert read.geometry == replace(GEOMETRY, num_upper_layers=COUNT * LAYERS)
    read.verify()
    assert not len(read.inputs()) and read_json(read.path / "manifest.json")["format_version"] == 1
    for written, found in ((weights.layers, read.layers()), (weights.maps, read.maps())):
        for name, tensor in written.state_dict().items():
            torch.testing.assert_close(found.state_dict()[name], tensor.half().float())


def test_narrow_students_are_read_as_they_were_written(root: RootFolder) -> None:
    """With a map into their width, and as a format that releases before them do not read."""
    read = random_students(root, COUNT, LAYERS, generator(), 8, PARALLEL)
    assert (read.shape.width, read.hidden_size) == (8, 16)
    assert read.geometry == replace(
        GEOMETRY, num_upper_layers=COUNT * LAYERS, hidden_size=8, intermediate_size=16, num_heads=1
    )
    assert read_json(read.path / "manifest.json")["format_version"] == 2
    hidden = torch.randn(5, 16, generator=generator())
    for student, own in enumerate(read.inputs()):
        expected = hidden @ own.get_parameter("weight").T + own.get_parameter("bias")
        torch.testing.assert_close(read.inputs().enter(student, hidden), expected)
    assert len(read.inputs()) == COUNT
    assert [each.get_parameter("weight").shape for each in read.maps()] == [(16, 8)] * COUNT
    assert random_students(root, COUNT, LAYERS, generator()).inputs().enter(0, hidden) is hidden


@pytest.mark.parametrize("width", [16, 8])
def test_chains_are_read_as_they_were_written(root: RootFolder, width: int) -> None:
    """Only the first one of narrow students has a map into their width; the others read its states."""
    read = random_students(root, COUNT, LAYERS, generator(), width)
    assert read.shape == StudentShape(COUNT, LAYERS, width, CHAINED)
    assert read_json(read.path / "manifest.json")["format_version"] == 3
    inputs, states = read.inputs(), torch.randn(5, width, generator=generator())
    assert len(inputs) == (1 if width < 16 else 0)
    assert inputs.enter(1, states) is states
    read.verify()


def test_students_in_parallel_read_the_rows_and_say_a_sum() -> None:
    shape, rows = StudentShape(COUNT, LAYERS, 16), torch.randn(5, 16, generator=generator())
    states = list(shape.pass_each(rows, lambda student, hidden: hidden + student, COUNT))
    for student, each in enumerate(states):
        torch.testing.assert_close(each, rows + student)
    for count, each in enumerate(shape.prefixes(states), start=1):
        torch.testing.assert_close(each, torch.stack(states[:count]).sum(dim=0))
    assert list(shape.whole) == [0]


def test_students_of_a_chain_read_the_one_before_and_each_says_everything() -> None:
    shape, rows = StudentShape(COUNT, LAYERS, 16, CHAINED), torch.randn(5, 16, generator=generator())
    first, second = shape.pass_each(rows, lambda student, hidden: 2 * hidden + student, 2)
    torch.testing.assert_close(first, 2 * rows)
    torch.testing.assert_close(second, 4 * rows + 1)
    assert shape.prefixes([first, second]) == [first, second]
    assert list(shape.whole) == [0, 1, 2]


@pytest.mark.parametrize(("width", "depth"), [(16, 2 / 3), (8, (2 * (4 * 64 + 2 * 8 * 16) + 16 * 8) / (3 * 2048))])
def test_a_student_costs_what_its_products_multiply(width: int, depth: float) -> None:
    assert StudentShape(COUNT, LAYERS, width).depth(GEOMETRY) == pytest.approx(depth)


@pytest.mark.parametrize(("width", "message"), [(17, "at most as wide"), (12, "multiple of 8"), (4, "multiple of 8")])
def test_widths_that_do_not_fit_the_root_are_rejected(width: int, message: str) -> None:
    shape = StudentShape(COUNT, LAYERS, width)
    for use in (shape.geometry, shape.depth):
        with pytest.raises(InvalidArgumentError, match=message):
            use(GEOMETRY)


def test_layers_of_a_span_are_one_student(root: RootFolder) -> None:
    students = random_students(root, COUNT, LAYERS, generator())
    layers, hidden = students.layers(), torch.randn(2, 5, 16, generator=generator())
    attend = padded_attention(GEOMETRY.num_heads, torch.ones(2, 5, dtype=torch.bool))
    for student in range(COUNT):
        expected = hidden
        for layer in range(LAYERS):
            expected = layers.layers[student * LAYERS + layer](expected, attend)
        torch.testing.assert_close(layers(hidden, attend, span=students.shape.span(student)), expected)


def test_fingerprints_cover_weights_sizes_and_the_root(root: RootFolder, tmp_path: Path) -> None:
    first = random_students(root, COUNT, LAYERS, generator()).fingerprint
    other_root = random_root(tmp_path / "other", GEOMETRY, SEED + 1)
    others = [
        random_students(other_root, COUNT, LAYERS, generator()).fingerprint,
        random_students(root, LAYERS, COUNT, generator()).fingerprint,
        random_students(root, COUNT, LAYERS, generator(), wiring=PARALLEL).fingerprint,
        random_students(root, COUNT, LAYERS, torch.Generator().manual_seed(SEED + 1)).fingerprint,
    ]
    assert len({first, *others}) == 5
    assert random_students(root, COUNT, LAYERS, generator()).fingerprint == first


def test_students_of_another_root_are_rejected(root: RootFolder, tmp_path: Path) -> None:
    random_students(root, COUNT, LAYERS, generator())
    other = random_root(tmp_path / "other", GEOMETRY, SEED + 1)
    students_folder(root.path).rename(students_folder(other.path))
    with pytest.raises(FingerprintMismatchError):
        read_students(other)


@pytest.mark.parametrize("how", ["newer", "no version", "truncated", "missing", "count", "width", "wiring", "empty"])
def test_damaged_manifests_are_rejected(root: RootFolder, how: str) -> None:
    random_students(root, COUNT, LAYERS, generator())
    path = students_folder(root.path) / "manifest.json"
    content = read_json(path)
    changes = {
        "newer": {"format_version": 99},
        "no version": {"format_version": None},
        "count": {"shape": {**content["shape"], "count": 0}},
        "width": {"shape": {**content["shape"], "width": 8}},
        "wiring": {"shape": {**content["shape"], "wiring": "knotted"}},
        "empty": {"files": {}},
    }
    if how == "truncated":
        path.write_text(path.read_text()[:40])
    elif how == "missing":
        path.unlink()
    else:
        write_json(path, {**content, **changes[how]})
    with pytest.raises(FormatVersionError if how in ("newer", "no version") else CorruptFileError):
        read_students(root)


@pytest.mark.parametrize("name", ["layers.safetensors", "maps.safetensors", "inputs.safetensors"])
def test_damaged_weights_are_rejected(root: RootFolder, name: str) -> None:
    students = random_students(root, COUNT, LAYERS, generator(), width=8)
    path = students.path / name
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptFileError):
        students.verify()
    with pytest.raises(CorruptFileError):
        getattr(students, name.removesuffix(".safetensors"))()


@pytest.mark.parametrize("sizes", [(0, 1, 16), (1, 0, 16), (1, 1, 0)])
def test_sizes_are_positive(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        StudentShape(*sizes)


def test_weights_that_fp16_does_not_hold_are_not_written(root: RootFolder, tmp_path: Path) -> None:
    shape = StudentShape(1, 1, 16)
    weights = StudentWeights.untrained(shape, GEOMETRY)
    with torch.no_grad():
        weights.maps[0].weight.fill_(1e6)
    (tmp_path / "students").mkdir()
    with pytest.raises(HplmError, match="not finite"):
        write_students(tmp_path / "students", root, shape, weights)
    assert not (tmp_path / "students" / "manifest.json").exists()

"""Students on packed rows against a loop over rows and students, in batches that mix tenants, adapters and tasks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from adapter_reference import KINDS, random_adapters, reference_student_logits
from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.pooling import NO_POOLING, PAIR_POOLING, POOLED_STATES
from backends.adapters.slots import NoFreeSlotError
from backends.engine import slotted_layers
from backends.engine.compute_pool import ComputePool
from backends.engine.layouts import LAYOUTS, Sharing
from backends.engine.stack import StackSettings
from backends.engine.student_layers import ReadyStudents, StudentLayers, StudentRow
from backends.errors import HplmError
from backends.home import Home
from backends.root.int8_instructions import int8_instructions
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet
from backends.root.student_shape import CHAINED, PARALLEL
from bench.kit.layouts import ALL_LAYOUTS
from bench.kit.random_students import random_students, student_adapters_of
from row_errors import RowErrors
from seeds import SEED

COUNT, LAYERS, HIDDEN = 3, 2, 64
HAS_VNNI = int8_instructions() == "VNNI"
"""Without it weights in int8 have three quarters as many levels."""
TOLERANCE = {"fp32": 1e-4, "bf16": 1.5e-1, "int8": 3e-1 if HAS_VNNI else 5e-1}
"""Of a row's largest logit; students have no smoothing in int8."""
LARGEST = {"int8": 2 * TOLERANCE["int8"]}
MEDIAN_TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "int8": 5e-2 if HAS_VNNI else 1e-1}
STUDENT_KINDS = [kind for kind in KINDS if kind not in ("entrance", "all")]
POOLINGS = {"cls": "classification", "mean": "regression", NO_POOLING: "ner", PAIR_POOLING: "classification"}


WIDTHS = {PARALLEL: (HIDDEN, HIDDEN // 2, HIDDEN // 4), CHAINED: (HIDDEN, HIDDEN // 2)}


@pytest.fixture(
    scope="module",
    params=[(wiring, width) for wiring, widths in WIDTHS.items() for width in widths],
    ids=lambda param: f"{param[0]}, {param[1]} wide",
)
def students(request: pytest.FixtureRequest, built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> StudentSet:
    """Beside a root of links, because the home is for reading only."""
    folder = tmp_path_factory.mktemp("root")
    for path in Path(built_home.root("tiny")).iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path)
    wiring, width = request.param
    return random_students(RootFolder(folder), COUNT, LAYERS, torch.Generator().manual_seed(SEED), width, wiring)


def random_head(chance: random.Random, labels: int, width: int) -> Head:
    dense = {}
    if chance.random() < 0.3:
        dense = {"dense_weight": torch.randn(width, width) / width**0.5, "dense_bias": torch.randn(width)}
    return Head(torch.randn(labels, width) / width**0.5, torch.randn(labels), **dense)


def random_artifact(chance: random.Random, students: StudentSet, kind: str, pooling: str) -> HplmArtifact:
    """What students do not read, such as its adapters in the upper layers, is left empty."""
    task = POOLINGS[pooling]
    names = () if task == "regression" else tuple(f"label {number}" for number in range(chance.randint(2, 5)))
    width, labels = POOLED_STATES[pooling] * students.shape.width, len(names) or 1
    heads = [random_head(chance, labels, width) for _ in range(COUNT)]
    own = student_adapters_of(students, random_adapters(chance, students.geometry, kind), heads)
    artifact = HplmArtifact("x/y", "root", task, names, pooling, AdapterSet(), heads[0], pair=pooling == PAIR_POOLING)
    return artifact.with_students(own, students)


def random_artifacts(students: StudentSet, seed: int) -> dict[int, HplmArtifact]:
    chance = random.Random(SEED + seed)
    torch.manual_seed(SEED + seed)
    kinds = [(kind, pooling) for kind in STUDENT_KINDS for pooling in POOLINGS]
    return {key: random_artifact(chance, students, *one) for key, one in enumerate(kinds, start=1)}


class Batch:
    """Random rows of some hPLMs, each with its number of students."""

    def __init__(
        self, chance: random.Random, students: StudentSet, artifacts: dict[int, HplmArtifact], size: int
    ) -> None:
        self._students = students
        self._artifacts = artifacts
        self.keys = [chance.choice(sorted(artifacts)) for _ in range(size)]
        lengths = [chance.choice([1, 2, 5, 5, 9, 32]) for _ in self.keys]
        self.rows = [torch.randn(length, HIDDEN).half() for length in lengths]
        self.counts = [chance.randint(1, COUNT) for _ in self.keys]
        pairs = [artifacts[key].pair and length > 1 for key, length in zip(self.keys, lengths, strict=True)]
        self.middles = [
            chance.randint(1, length - 1) if is_pair else None for is_pair, length in zip(pairs, lengths, strict=True)
        ]

    def ready(self, layers: StudentLayers) -> list[ReadyStudents]:
        return [layers.ready(key, lambda key=key: self._artifacts[key]) for key in self.keys]  # type: ignore[misc]

    def run(self, layers: StudentLayers, counts: list[int] | None = None, isolated: bool = False) -> list[Tensor]:
        ready = self.ready(layers)
        columns = zip(ready, counts or self.counts, self.middles, strict=True)
        try:
            return layers.run(layers.pack(self.rows, ready, isolated), [StudentRow(*column) for column in columns])
        finally:
            for hplm in ready:
                layers.release(hplm)

    def require_close(self, got: list[Tensor], dtype: str) -> None:
        self.add_errors(RowErrors(SEED, TOLERANCE[dtype]), got)

    def add_errors(self, errors: RowErrors, got: list[Tensor]) -> None:
        columns = zip(self.keys, self.rows, self.counts, self.middles, got, strict=True)
        for key, row, count, middle, logits in columns:
            artifact = self._artifacts[key]
            expected = reference_student_logits(self._students, artifact, row.float(), count, middle)
            assert logits.dtype == torch.float32 and logits.shape == expected.shape
            errors.add(logits, expected)


@pytest.mark.parametrize("least_to_narrow", [0.0, 2.0])
@pytest.mark.parametrize("sharing", [Sharing(), Sharing(3, 1, 40)])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_mixed_batches_equal_rows_and_students_alone(
    students: StudentSet, dtype: str, sharing: Sharing, least_to_narrow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed at once and in shares, with the rows of fewer students left out and carried along; slots are reused."""
    monkeypatch.setattr(slotted_layers, "LEAST_TO_NARROW", least_to_narrow)
    pool, settings = ComputePool(3, torch.device("cpu")), StackSettings(dtype=dtype, num_slots=9)
    layers = StudentLayers(students, settings, pool, lambda _: LAYOUTS["ragged"](sharing))
    artifacts, chance = random_artifacts(students, seed=3), random.Random(SEED + 4)
    errors = RowErrors(SEED, TOLERANCE[dtype], LARGEST.get(dtype))
    for _ in range(8):
        usable = {key: artifacts[key] for key in chance.sample(sorted(artifacts), 8)}
        batch = Batch(chance, students, usable, chance.randint(1, 24))
        batch.add_errors(errors, batch.run(layers))
    errors.require(MEDIAN_TOLERANCE[dtype])


@pytest.mark.parametrize("layout", ALL_LAYOUTS)
def test_all_layouts_give_the_same_answers(students: StudentSet, layout: str) -> None:
    artifacts, chance = random_artifacts(students, seed=5), random.Random(SEED + 6)
    settings = StackSettings(dtype="fp32", num_slots=len(artifacts) + 1)
    layers = StudentLayers(students, settings, layout_of=ALL_LAYOUTS[layout])
    batch = Batch(chance, students, artifacts, 40)
    batch.require_close(batch.run(layers), "fp32")
    batch.require_close(batch.run(layers, isolated=True), "fp32")


def test_more_students_begin_with_the_first(students: StudentSet) -> None:
    """A student says the same whether others follow or not, and the hidden rows stay as they are for all."""
    artifacts, chance = random_artifacts(students, seed=7), random.Random(SEED + 8)
    layers = StudentLayers(students, StackSettings(dtype="fp32", num_slots=len(artifacts) + 1))
    batch = Batch(chance, students, artifacts, 30)
    by_count = [batch.run(layers, [count] * len(batch.keys)) for count in range(1, COUNT + 1)]
    ready = batch.ready(layers)
    packed = layers.pack(batch.rows, ready)
    before = [each.hidden.clone() for each in packed.micro_batches]
    rows = [StudentRow(hplm, COUNT, middle) for hplm, middle in zip(ready, batch.middles, strict=True)]
    for got, expected in zip(layers.run(packed, rows), by_count[-1], strict=True):
        assert torch.equal(got, expected)
    for each, hidden in zip(packed.micro_batches, before, strict=True):
        assert torch.equal(each.hidden, hidden)
    if students.shape.is_chained:
        return
    silent = {key: _without_last(artifact) for key, artifact in artifacts.items()}
    batch._artifacts = silent
    others = StudentLayers(students, StackSettings(dtype="fp32", num_slots=len(artifacts) + 1))
    for got, expected in zip(batch.run(others, [COUNT] * len(batch.keys)), by_count[-2], strict=True):
        assert torch.equal(got, expected)


def _without_last(artifact: HplmArtifact) -> HplmArtifact:
    """The same hPLM, whose last student says nothing."""
    own = artifact.students
    assert own is not None
    last = own.heads[-1]
    nothing = Head(torch.zeros_like(last.weight), torch.zeros_like(last.bias), last.dense_weight, last.dense_bias)
    return replace(artifact, students=replace(own, heads=(*own.heads[:-1], nothing)))


def test_an_hplm_s_students_never_meet_another_s_after_eviction(students: StudentSet) -> None:
    """With one slot for all, a lease that is not held any more is never computed with."""
    artifacts = random_artifacts(students, seed=9)
    first, second = [key for key, artifact in artifacts.items() if artifact.pooling == "cls"][:2]
    layers = StudentLayers(students, StackSettings(dtype="fp32", num_slots=2))
    row = torch.randn(7, HIDDEN).half()

    def answer(key: int) -> tuple[ReadyStudents, Tensor]:
        hplm = layers.ready(key, lambda: artifacts[key])
        return hplm, layers.run(layers.pack([row], [hplm]), [StudentRow(hplm, COUNT)])[0]

    for key in (first, second, first):
        hplm, logits = answer(key)
        expected = reference_student_logits(students, artifacts[key], row.float(), COUNT)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        with pytest.raises(NoFreeSlotError):
            layers.ready(99, lambda: artifacts[first])
        layers.release(hplm)
    stale, _ = answer(first)
    packed = layers.pack([row], [stale])
    layers.release(stale)
    layers.release(answer(second)[0])
    with pytest.raises(HplmError, match="filled anew"):
        layers.run(packed, [StudentRow(stale, 1)])


def test_an_hplm_without_anything_for_students_is_an_error(students: StudentSet) -> None:
    artifact = replace(next(iter(random_artifacts(students, seed=9).values())), students=None)
    layers = StudentLayers(students, StackSettings(dtype="fp32", num_slots=2))
    with pytest.raises(HplmError, match="'x/y' has nothing for students"):
        layers.ready(1, lambda: artifact)
    assert not layers.slots.resident()

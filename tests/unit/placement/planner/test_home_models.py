"""The stacks of a home as models: what requests ask of them, by level, and what they take in time and memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adapter_reference import random_adapters
from backends.adapters.bank import read_artifact, weights_bytes
from backends.adapters.head import Head
from backends.adapters.student_adapters import student_weights_bytes, write_student_adapters
from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.cost_profile import CostProfile, Measured, write_profile
from backends.scheduling.settings import Capacity
from backends.stack_key import STUDENTS
from bench.kit.random_students import random_students, student_adapters_of
from builder.construct.hplm.hplms import publish_artifact
from builder.placement.planner import home_models
from builder.placement.planner.asked_stacks import AskedStacks
from builder.placement.planner.asked_traffic import Recorded, read_asked
from builder.placement.planner.group import Device
from builder.placement.planner.planner import Fleet
from builder.placement.planner.recorded import recorded_fleet
from workload.traces import read_trace

COUNT = 2
MODEL = CostModel(2_000.0, 100.0, 30.0, 0.01, 50.0)
DEVICES = (Device("0", 10**9),)


@pytest.fixture
def home(tiny_home: Home) -> Home:
    registry = Registry.open(tiny_home)
    measured = Measured(registry.root("tiny").fingerprint, "H200", "bf16", "ragged", 2)
    write_profile(tiny_home.profile("tiny"), CostProfile(MODEL, measured, "2", 100, 5.0))
    return tiny_home


def add_students(home: Home, name: str) -> StudentSet:
    """Give the root students, and publish an hPLM that answers by them."""
    registry, root = Registry.open(home), RootFolder(home.root("tiny"))
    model = registry.hplm("acme/topic")
    students = random_students(root, COUNT, 1, torch.Generator().manual_seed(1))
    artifact = replace(read_artifact(home.path / model.folder, root.fingerprint), hplm=name)
    size = len(artifact.head.bias), students.shape.width
    heads = [Head(torch.randn(size), torch.randn(size[0])) for _ in range(COUNT)]
    adapters = random_adapters(random.Random(1), students.geometry, "lora")
    metrics = {STUDENTS: {"set": students.fingerprint, "best": COUNT, "depth": students.depth}}
    published = publish_artifact(home, registry, artifact, model.domain, metrics)
    write_student_adapters(home.path / published.folder, student_adapters_of(students, adapters, heads, COUNT))
    return students


def fleet_of(home: Home, path: Path, lines: Sequence[str]) -> Fleet:
    path.write_text("\n".join(["time_s,hplm,tokens,deadline_ms,level", *lines]))
    registry = Registry.open(home)
    return recorded_fleet(home, registry, read_asked(registry, Recorded(path, slots=256)), DEVICES, seed=1)


def test_students_are_a_stack_of_their_own(home: Home, tmp_path: Path) -> None:
    students = add_students(home, "acme/students")
    lines = [
        "0,acme/topic,10,50,",
        "1,acme/students,30,50,students",
        "2,acme/students,50,50,students-1",
        "3,acme/students,12,50,full",
        "4,acme/students,14,50,",
    ]
    fleet = fleet_of(home, tmp_path / "t.csv", lines)
    full, own = fleet.models
    assert (full.name, own.name) == ("tiny", "tiny/students")
    assert fleet.traffic.models.tolist() == [0, 1, 1, 0, 0]
    assert fleet.num_hplms == (2, 1)
    # `students` has time for both of them, and is answered by one at least.
    depth, tokens = students.depth, 40.0
    likely = (2 * depth + depth) / 2
    assert own.alone_us == round(MODEL.predict_us(BatchShape(1, likely * tokens, likely * tokens**2, 1, likely)))
    assert full.alone_us == round(MODEL.predict_us(BatchShape(1, 12.0, 144.0, 1)))
    assert own.busy_us < full.busy_us * 40 / 12 and own.full_batch_us < 3 * full.full_batch_us
    entries = [entry for entry in Registry.open(home).hplms() if entry.students]
    slot = student_weights_bytes(home.path / entries[0].folder)
    assert own.size_bytes == students.served_bytes + slot
    assert len(own.halves_us) == 2 * COUNT


def test_a_batch_holds_what_the_export_lets_it(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    full_rows = []
    for capacity in (Capacity(), Capacity(max_rows=1), Capacity(max_tokens=100)):
        fleet_of(home, path, ["0,acme/topic,10,50,"])
        registry = Registry.open(home)
        asked = read_asked(registry, Recorded(path))
        recorded = recorded_fleet(home, registry, asked, DEVICES, seed=1, capacity=capacity)
        full_rows.append(recorded.models[0].full_rows)
    assert full_rows == [64, 1, 10]


def test_students_that_nobody_asks_for_are_placed_all_the_same(home: Home, tmp_path: Path) -> None:
    assert [model.name for model in fleet_of(home, tmp_path / "t.csv", ["0,acme/topic,10,50,"]).models] == ["tiny"]
    add_students(home, "acme/students")
    fleet = fleet_of(home, tmp_path / "t.csv", ["0,acme/topic,10,50,"])
    assert [model.name for model in fleet.models] == ["tiny", "tiny/students"]
    assert fleet.traffic.models.tolist() == [0] and fleet.num_hplms == (1, 0)


def test_rows_that_leave_early_occupy_a_device_for_less(home: Home, tmp_path: Path) -> None:
    registry = Registry.open(home)
    entry = registry.hplm("acme/topic")
    artifact = replace(read_artifact(home.path / entry.folder, registry.root("tiny").fingerprint), hplm="acme/quick")
    ladder = {"answered_early": 0.8, "after": 1, "layers": 2}
    metrics = {"levels": ["early", "full"], "ladder": ladder}
    publish_artifact(home, registry, artifact, entry.domain, metrics)
    alone = {
        level: fleet_of(home, tmp_path / "t.csv", [f"0,acme/quick,10,50,{level}"]).models[0].alone_us
        for level in ("", "early", "full")
    }
    assert alone["early"] < alone[""] < alone["full"]
    expected = MODEL.predict_us(BatchShape(1, 0.6 * 10, 0.6 * 100, 1, 0.6))
    assert alone[""] == round(expected)


def test_levels_that_are_not_there_are_one_line(home: Home, tmp_path: Path) -> None:
    add_students(home, "acme/students")
    for line, complaint in (
        ("0,acme/topic,10,50,students", "hPLM 'acme/topic' has no level 'students'; it has"),
        ("0,acme/students,10,50,students-3", "has no level 'students-3'"),
        ("0,tiny,10,50,early", "requests for root 'tiny' have no level 'early'"),
    ):
        with pytest.raises(InvalidArgumentError, match=complaint):
            fleet_of(home, tmp_path / "t.csv", [line])
    with pytest.raises(NotFoundError, match="'acme/gone', which are no hPLMs"):
        fleet_of(home, tmp_path / "t.csv", ["0,acme/gone,10,50,"])
    random_students(RootFolder(home.root("tiny")), COUNT, 1, torch.Generator().manual_seed(2))
    with pytest.raises(InvalidArgumentError, match="no students that its hPLMs go with"):
        fleet_of(home, tmp_path / "t.csv", ["0,acme/students,10,50,students"])


def test_means_of_lengths_are_those_of_each_stack(home: Home, tmp_path: Path, seed: int) -> None:
    rng, path = np.random.default_rng(seed), tmp_path / "t.csv"
    names, tokens = rng.choice(["acme/topic", "acme/mood", "tiny"], 50), rng.integers(1, 99, 50)
    path.write_text("\n".join(["time_s,hplm,tokens", *(f"0,{a},{b}" for a, b in zip(names, tokens, strict=True))]))
    entries = {entry.id: entry for entry in Registry.open(home).hplms()}
    trace = read_trace(path)
    means = AskedStacks.of(trace, path, entries, ["tiny"]).means(trace.tokens, 20.0, ["tiny"])
    assert means["tiny"].tokens == pytest.approx(tokens.mean())


@pytest.mark.parametrize(
    ("dtype", "device", "layers", "slots"),
    [("bf16", "H200", 1, 1), ("int8", "H200", 0.5, 1), ("int8", "this CPU", 0.5, 2), ("fp32", "another CPU", 2, 2)],
)
def test_slots_are_as_large_as_the_adapters(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, device: str, layers: float, slots: int
) -> None:
    """On a processor without bf16 instructions adapters are in fp32, also beside layers in int8."""
    monkeypatch.setattr(home_models, "device_name", lambda _: "this CPU")
    monkeypatch.setattr(home_models, "fast_float_dtype", lambda _: "fp32")
    registry = Registry.open(home)
    measured = Measured(registry.root("tiny").fingerprint, device, dtype, "ragged", 2)
    write_profile(home.profile("tiny"), CostProfile(MODEL, measured, "2", 100, 5.0))
    folders = [home.path / entry.folder for entry in registry.hplms()]
    (model,) = fleet_of(home, tmp_path / "t.csv", ["0,acme/topic,10,50,"]).models
    expected = layers * RootFolder(home.root("tiny")).upper_bytes + slots * sum(map(weights_bytes, folders))
    assert model.size_bytes == pytest.approx(expected, abs=2)

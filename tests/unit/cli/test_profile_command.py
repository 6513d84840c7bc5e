"""`hplm profile`: a cost model measured with the real engine, kept in the home, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from backends.engine.stack import StackSettings
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.int8_instructions import int8_instructions
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.cost_profile import read_profile
from backends.scheduling.settings import Capacity
from builder.profiling.engine import ProfiledEngine
from builder.profiling.shapes import PlannedBatch, planned_batches

Run = Callable[..., str]


@pytest.fixture
def run(run_hplm: Run, tiny_home: Home) -> Run:
    """On the home."""
    return lambda *arguments: run_hplm(*arguments, "--home", str(tiny_home.path))


def test_a_profile_is_measured_kept_and_shown(run: Run, tiny_home: Home) -> None:
    assert "has no cost model yet" in run("profile", "--show")
    options = ("--dtype", "fp32", "--threads", "1", "--batches", "40", "--repeats", "1")
    measured = json.loads(run("profile", *options, "--json"))
    assert measured["batches"] == 40
    assert (measured["dtype"], measured["threads"]) == ("fp32", 1)
    assert measured["constant_us"] > 0, "an engine that takes no time for nothing does not exist"
    assert measured == json.loads(run("profile", "--show", "--json"))
    profile = read_profile(tiny_home.profile("tiny"))
    assert profile.measured.root_fingerprint == Registry.open(tiny_home).root("tiny").fingerprint
    assert len(profile.layers_us) == 2 and min(profile.layers_us) > 0
    assert not [path for path in tiny_home.profile("tiny").iterdir() if path.name != "cost_model.json"]


@pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")
def test_a_profile_may_be_of_int8(run: Run, tiny_home: Home) -> None:
    options = ("--dtype", "int8", "--threads", "1", "--batches", "40", "--repeats", "1")
    assert json.loads(run("profile", *options, "--json"))["dtype"] == "int8"
    assert read_profile(tiny_home.profile("tiny")).measured.dtype == "int8"


def test_what_cannot_be_measured_is_one_line_and_leaves_nothing(run: Run, tiny_home: Home) -> None:
    assert "at least 40 batches" in run("profile", "--batches", "3")
    assert "at least once" in run("profile", "--repeats", "0")
    if not torch.cuda.is_available():
        assert "finds no GPU here" in run("profile", "--device", "gpu")
    registry = Registry.open(tiny_home)
    for entry in registry.hplms():
        registry.delete_hplm(entry.id)
    assert "has no hPLM yet" in run("profile")
    assert not tiny_home.profile("tiny").exists()


def test_planned_batches_are_within_the_capacity_and_differ() -> None:
    capacity = Capacity(max_rows=20, max_tokens=300, max_adapters=5)
    planned = planned_batches(300, capacity, max_length=64, seed=3)
    for batch in planned:
        assert 1 <= len(batch.lengths) <= 20
        assert sum(batch.lengths) <= 300 or len(batch.lengths) == 1
        assert all(3 <= length <= 64 for length in batch.lengths)
        assert 1 <= batch.adapters <= min(5, len(batch.lengths))
    assert {1, 20} <= {len(batch.lengths) for batch in planned}
    assert {1, 5} <= {batch.adapters for batch in planned}
    shares = [sum(batch.leaves) / len(batch.lengths) for batch in planned]
    assert 70 < shares.count(0.0) < 150 and 70 < shares.count(1.0) < 150
    assert planned == planned_batches(300, capacity, max_length=64, seed=3)


@pytest.mark.parametrize(("layout", "depth"), [("ragged", 0.5), ("concat", 1.0)])
def test_rows_leave_where_that_is_planned_whatever_ladder_their_hplm_has(
    tiny_home: Home, layout: str, depth: float
) -> None:
    registry = Registry.open(tiny_home)
    engine = ProfiledEngine(tiny_home, registry, "tiny", StackSettings(dtype="fp32", layout=layout), seed=3)
    shapes = [engine.run(PlannedBatch([8, 4], 2, leaves)).shape for leaves in ([False] * 2, [False, True], [True] * 2)]
    assert shapes == [
        BatchShape(2, 12, 80, 2),
        BatchShape(2, 8 + depth * 4, 64 + depth * 16, 2),
        BatchShape(2, depth * 12, depth * 80, 2, depth),
    ]

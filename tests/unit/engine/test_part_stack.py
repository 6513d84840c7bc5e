"""A root's layers in one stack for each stage, one behind the other, against the whole stack: the same, bit for bit."""

from __future__ import annotations

import os
import random

import pytest
import torch

from adapter_reference import KINDS, random_artifact
from backends.engine.compute_pool import ComputePool
from backends.engine.part_stack import PartUpperStack
from backends.engine.pipeline import Pipeline, StagePlace, own_place
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from backends.scheduling.cuts import spans_of
from bench.kit.random_root import random_root

NUM_BATCHES = int(os.environ.get("HPLM_RANDOM_BATCHES", "5"))
GEOMETRY = RootGeometry(100, 32, 128, 4, 1, 5, 32, 2, 1e-12, "gelu")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> RootFolder:
    return random_root(tmp_path_factory.mktemp("parts") / "root", GEOMETRY, seed=1)


@pytest.mark.parametrize("cut", [(3, 5), (1, 2, 5), (1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_parts_one_behind_the_other_answer_as_the_whole_stack_does(
    root: RootFolder, dtype: str, cut: tuple[int, ...], seed: int
) -> None:
    """All kinds of adapters, mixed tenants, pairs. Between the parts, rows are in fp32 whatever those compute in."""
    chance = random.Random(f"{seed} {cut}")
    artifacts = {key: random_artifact(chance, root, kind) for key, kind in enumerate(KINDS, start=1)}
    settings, spans = StackSettings(dtype=dtype, num_slots=len(KINDS) + 1), spans_of(cut)
    pipelines = [Pipeline([StagePlace(CPU, 1)]) for _ in cut]
    parts = [PartUpperStack(root, settings, pipeline, spans, stage) for stage, pipeline in enumerate(pipelines)]
    whole = UpperStack(root, settings, ComputePool(1, CPU))
    for number in range(NUM_BATCHES):
        keys = [chance.choice(sorted(artifacts)) for _ in range(chance.randint(1, 24))]
        lengths = [chance.choice([2, 3, 5, 9, 32]) for _ in keys]
        middles = [chance.choice([None, length // 2]) for length in lengths]
        given = [torch.randn(length, GEOMETRY.hidden_size).half() for length in lengths]
        results = []
        for stacks in ([whole], parts):
            rows = given
            for stack in stacks:
                ready = [stack.ready(key, lambda key=key: artifacts[key]) for key in keys]  # type: ignore[misc]
                rows = stack.run(stack.pack(rows, ready), ready, middles)
                for hplm in ready:
                    stack.release(hplm)
            results.append(rows)
        assert all(map(torch.equal, *results)), f"batch {number} of seed {seed}"
    for pipeline in pipelines:
        pipeline.close()


def test_a_part_holds_its_own_layers_and_adapters_only(root: RootFolder) -> None:
    chance = random.Random(5)
    artifacts = {key: random_artifact(chance, root, kind) for key, kind in enumerate(KINDS, start=1)}
    settings, pipeline = StackSettings(dtype="fp32", num_slots=len(KINDS) + 1), Pipeline([StagePlace(CPU, 1)])
    whole = UpperStack(root, settings, ComputePool(1, CPU))
    parts = [PartUpperStack(root, settings, pipeline, spans_of((2, 5)), stage) for stage in (0, 1)]
    for stack in (whole, *parts):
        for key, artifact in artifacts.items():
            assert stack.ready(key, lambda artifact=artifact: artifact).ladder is None  # type: ignore[misc]
    sizes = [stack.slots.bank.size_bytes for stack in (whole, *parts)]
    assert 0 < sizes[1] < sizes[2] < sizes[0] == sizes[1] + sizes[2]
    pipeline.close()


def test_a_part_computes_on_the_cores_of_its_stage() -> None:
    cores = sorted(os.sched_getaffinity(0))
    places = [own_place(CPU, stage, 2, 2) for stage in (0, 1)]
    assert [place.threads for place in places] == [1, 1]
    if len(cores) > 1:
        assert sorted([*places[0].cores, *places[1].cores]) == cores
    gpu = torch.device("cuda:3")
    assert own_place(gpu, 3, 4, 1) == StagePlace(gpu, 1)
    with pytest.raises(InvalidArgumentError, match="2 stages compute on at least 2 threads"):
        own_place(CPU, 0, 2, 1)

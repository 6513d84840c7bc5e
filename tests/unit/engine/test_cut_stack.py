"""Layers cut in stages against the whole stack: the same answers, bit for bit, and no adapter in a wrong stage."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from adapter_reference import KINDS, random_artifact
from backends.adapters.bank import HplmArtifact
from backends.adapters.cut_bank import CutBank
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, Ladder
from backends.adapters.parts import Norm
from backends.engine import slotted_layers
from backends.engine.compute_pool import ComputePool
from backends.engine.cut_stack import CutUpperStack
from backends.engine.exits import Early, Exit
from backends.engine.pipeline import Pipeline, StagePlace
from backends.engine.pruning import Prunable
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from backends.root.word_marks import BEGINS_WORD
from backends.scheduling.cuts import spans_of
from bench.kit.random_root import random_root

NUM_BATCHES = int(os.environ.get("HPLM_RANDOM_BATCHES", "5"))
GEOMETRY = RootGeometry(100, 32, 128, 4, 1, 5, 32, 2, 1e-12, "gelu")
CPU = torch.device("cpu")
CUTS = [(3, 5), (1, 5), (1, 2, 5), (1, 2, 3, 4, 5)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> RootFolder:
    return random_root(tmp_path_factory.mktemp("stages") / "root", GEOMETRY, seed=1)


def pipeline_of(stages: int, threads: int = 1, device: torch.device = CPU) -> Pipeline:
    return Pipeline([StagePlace(device, threads)] * stages)


@dataclass(frozen=True)
class Batch:
    """Random rows of random tenants, most with exits after random layers."""

    keys: list[int]
    rows: list[Tensor]
    exits: list[Exit | None]

    @classmethod
    def drawn(cls, chance: random.Random, artifacts: dict[int, HplmArtifact]) -> Batch:
        keys = [chance.choice(sorted(artifacts)) for _ in range(chance.randint(1, 24))]
        rows = [torch.randn(chance.choice([1, 2, 5, 9, 32]), GEOMETRY.hidden_size).half() for _ in keys]
        return cls(
            keys, rows, [cls._exit(chance, artifacts[key], len(row)) for key, row in zip(keys, rows, strict=True)]
        )

    @staticmethod
    def _exit(chance: random.Random, artifact: HplmArtifact, length: int) -> Exit | None:
        if chance.random() < 0.3:
            return None
        labels = len(artifact.labels)
        head = Head(torch.randn(labels, GEOMETRY.hidden_size), torch.randn(labels))
        prunable = None if chance.random() < 0.5 else Prunable(1.0, np.full(length, BEGINS_WORD, np.uint8))
        return Exit(chance.randint(1, 4), head, 4.0, chance.choice([None, 0.5, 0.7, 2.0]), prunable=prunable)

    def run(
        self, stack: UpperStack, artifacts: dict[int, HplmArtifact], exits: Sequence[Exit | None]
    ) -> tuple[list[Tensor], dict[int, Early]]:
        early: dict[int, Early] = {}
        lock = threading.Lock()

        def on_early(found: Sequence[tuple[int, Early]]) -> None:
            with lock:
                early.update(found)

        ready = [stack.ready(key, lambda key=key: artifacts[key]) for key in self.keys]  # type: ignore[misc]
        try:
            return stack.run(stack.pack(self.rows, ready), ready, None, exits, on_early), early
        finally:
            for hplm in ready:
                stack.release(hplm)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.long), 3], ids="{} threads a stage".format)
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_stages_answer_as_the_whole_stack_does(
    root: RootFolder, dtype: str, cut: tuple[int, ...], threads: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kinds of adapters, few slots; rows that leave early are laid out anew at once."""
    monkeypatch.setattr(slotted_layers, "LEAST_TO_NARROW", 0.0)
    chance = random.Random(f"{seed} {cut} {threads}")
    artifacts = {key: random_artifact(chance, root, kind) for key, kind in enumerate(KINDS, start=1)}
    settings = StackSettings(dtype=dtype, num_slots=len(KINDS) + 1)
    pipeline = pipeline_of(len(cut), threads)
    whole, stages = (
        UpperStack(root, settings, ComputePool(threads, CPU)),
        CutUpperStack(root, settings, pipeline, spans_of(cut)),
    )
    for number in range(NUM_BATCHES):
        batch = Batch.drawn(chance, artifacts)
        for exits in ([None] * len(batch.keys), batch.exits):
            expected, expected_early = batch.run(whole, artifacts, exits)
            found, early = batch.run(stages, artifacts, exits)
            case = f"batch {number} of seed {seed}"
            assert all(map(torch.equal, found, expected)), case
            assert early.keys() == expected_early.keys(), case
            for index, one in early.items():
                other = expected_early[index]
                assert torch.equal(one.logits, other.logits) and one[1:] == other[1:], case
    pipeline.close()


def test_each_stage_holds_the_adapters_of_its_own_layers(root: RootFolder) -> None:
    """And no others: what a stage's slots take is the share of its layers."""
    chance, cut = random.Random(5), (1, 5)
    artifacts = {key: random_artifact(chance, root, kind) for key, kind in enumerate(KINDS, start=1)}
    settings = StackSettings(dtype="fp32", num_slots=len(KINDS) + 1)
    pipeline = pipeline_of(2)
    whole, stages = UpperStack(root, settings), CutUpperStack(root, settings, pipeline, spans_of(cut))
    for key, artifact in artifacts.items():
        held = []
        for stack in (whole, stages):
            lease = stack.ready(key, lambda artifact=artifact: artifact).lease  # type: ignore[misc]
            held.append(stack.slots.bank.held(lease.slot))
        for name, part in held[0].parts().items():
            for tensor_name, tensor in part.named().items():
                assert torch.equal(held[1].parts()[name].named()[tensor_name], tensor)
    bank = stages.slots.bank
    assert isinstance(bank, CutBank) and not bank.pools
    assert bank.size_bytes == whole.slots.bank.size_bytes
    first, last = ({name: pool.tensors for (name, _), pool in each.pools.items()} for each in bank.of_stages)
    assert "bottleneck.entrance" in first and "bottleneck.entrance" not in last
    assert {len(tensor) for tensor in first["lora.query"].values()} == {1}
    assert {len(tensor) for tensor in last["lora.query"].values()} == {4}
    pipeline.close()


def test_adapters_of_another_depth_are_rejected_whole(root: RootFolder) -> None:
    """Cut to the stages' layers, ones of too many layers would fit."""
    chance = random.Random(6)
    fits = random_artifact(chance, root, "identity")
    norm = Norm(torch.ones(7, GEOMETRY.hidden_size), torch.zeros(7, GEOMETRY.hidden_size))
    deeper = replace(fits, adapters=replace(fits.adapters, norms={"output": norm}))
    pipeline = pipeline_of(2)
    stack = CutUpperStack(root, StackSettings(dtype="fp32", num_slots=3), pipeline, spans_of((2, 5)))
    with pytest.raises(InvalidArgumentError, match=r"norm\.output"):
        stack.ready(1, lambda: deeper)
    assert stack.slots.resident() == []
    pipeline.close()


@pytest.mark.gpu
@pytest.mark.parametrize("devices", [("cuda:0", "cuda:0"), ("cpu", "cuda:0"), ("cuda:0", "cpu")], ids=str)
def test_stages_on_devices_answer_as_the_whole_stack_does(
    root: RootFolder, tmp_path: Path, devices: tuple[str, str], seed: int
) -> None:
    """Early heads lie where their layers do; a row passes from one device to the next."""
    chance = random.Random(seed)
    artifacts = {}
    for key, kind in enumerate(KINDS, start=1):
        artifact = random_artifact(chance, root, kind)
        ladder = Ladder(EarlyStep(chance.randint(1, 4), artifact.head, 4.0, 0.6), 1.0, {"max_drop": 1.0})
        artifacts[key] = replace(artifact, ladder=ladder)
    settings = StackSettings(dtype="fp32", num_slots=len(KINDS) + 1, device=devices[0])
    pipeline = Pipeline([StagePlace(torch.device(device), 1) for device in devices])
    whole = UpperStack(root, replace(settings, device="cpu"), ComputePool(1, CPU))
    stages = CutUpperStack(root, settings, pipeline, spans_of((2, 5)))
    for _ in range(NUM_BATCHES):
        batch = Batch.drawn(chance, artifacts)
        expected, _ = batch.run(whole, artifacts, [None] * len(batch.keys))
        found, _ = batch.run(stages, artifacts, _own_exits(stages, batch, artifacts))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)
    pipeline.close()


def _own_exits(stack: UpperStack, batch: Batch, artifacts: dict[int, HplmArtifact]) -> list[Exit | None]:
    """Exits at the early heads that the stack has on its devices, where no row leaves."""
    exits: list[Exit | None] = []
    for key in batch.keys:
        hplm = stack.ready(key, lambda key=key: artifacts[key])  # type: ignore[misc]
        stack.release(hplm)
        step = hplm.ladder.early if hplm.ladder is not None else None
        exits.append(None if step is None else Exit(step.after, step.head, step.temperature, 2.0))
    return exits

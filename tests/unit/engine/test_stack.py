"""The packed engine against a loop over rows, in mixed-tenant batches."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.encoder import padded_attention
from backends.root.store import RootFolder

TOLERANCE = {"fp32": 1e-4, "bf16": 6e-2}


def one_row(root: RootFolder, artifact: HplmArtifact, hidden: Tensor) -> Tensor:
    """The obvious way: one row, one hPLM, fp32."""
    adapter, head = artifact.adapter.to(torch.float32), artifact.head.to(torch.float32)
    attend = padded_attention(root.geometry.num_heads, torch.ones(1, len(hidden), dtype=torch.bool))
    states = hidden[None]
    for index, layer in enumerate(root.upper().layers):
        states = layer(states, attend, lambda x, index=index: adapter.apply(index, x))
    pooled = states[0].mean(dim=0) if artifact.pooling == "mean" else states[0, 0]
    return head.weight @ pooled + head.bias


def entries_of(home: Home) -> list[HplmEntry]:
    return Registry.open(home).hplms()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_mixed_batches_equal_rows_alone(built_home: Home, dtype: str) -> None:
    root = RootFolder(built_home.root("tiny"))
    stack = UpperStack(root, StackSettings(dtype=dtype, num_slots=3, max_bottleneck=16))
    artifacts = {e.key: read_artifact(built_home.path / e.folder, root.fingerprint) for e in entries_of(built_home)}
    chance = random.Random(3)
    torch.manual_seed(3)
    for _ in range(12):
        usable = chance.sample(sorted(artifacts), 2)  # no more than there are slots, so slots are reused all the time
        keys = [chance.choice(usable) for _ in range(chance.randint(1, 20))]
        rows = [torch.randn(chance.choice([1, 2, 5, 5, 9, 32]), root.geometry.hidden_size).half() for _ in keys]
        ready = [stack.ready(key, lambda key=key: artifacts[key]) for key in keys]  # type: ignore[misc]
        got = stack.run(stack.pack(rows, ready), ready)
        for hplm in ready:
            stack.release(hplm)
        for key, row, logits in zip(keys, rows, got, strict=True):
            expected = one_row(root, artifacts[key], row.float())
            assert (logits - expected).abs().max() <= TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))


def test_the_same_row_is_answered_alike_whatever_it_is_batched_with(built_home: Home) -> None:
    root = RootFolder(built_home.root("tiny"))
    stack = UpperStack(root, StackSettings(dtype="fp32", num_slots=8, max_bottleneck=16))
    artifacts = {e.key: read_artifact(built_home.path / e.folder, root.fingerprint) for e in entries_of(built_home)}
    first, *others = sorted(artifacts)
    row = torch.randn(7, root.geometry.hidden_size).half()
    alone = [stack.ready(first, lambda: artifacts[first])]
    expected = stack.run(stack.pack([row], alone), alone)[0]
    for number in range(1, 6):
        keys = [first] + [others[place % len(others)] for place in range(number)]
        ready = [stack.ready(key, lambda key=key: artifacts[key]) for key in keys]  # type: ignore[misc]
        rows = [row] + [torch.randn(3 + place, row.shape[1]).half() for place in range(number)]
        torch.testing.assert_close(stack.run(stack.pack(rows, ready), ready)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_the_gpu_equals_the_cpu(built_home: Home, dtype: str) -> None:
    root = RootFolder(built_home.root("tiny"))
    stack = UpperStack(root, StackSettings(device="cuda", dtype=dtype, num_slots=8, max_bottleneck=16))
    artifacts = {e.key: read_artifact(built_home.path / e.folder, root.fingerprint) for e in entries_of(built_home)}
    keys = sorted(artifacts) * 3
    rows = [torch.randn(1 + place, root.geometry.hidden_size).half() for place in range(len(keys))]
    ready = [stack.ready(key, lambda key=key: artifacts[key]) for key in keys]  # type: ignore[misc]
    for key, row, logits in zip(keys, rows, stack.run(stack.pack(rows, ready), ready), strict=True):
        expected = one_row(root, artifacts[key], row.float())
        assert (logits - expected).abs().max() <= TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))

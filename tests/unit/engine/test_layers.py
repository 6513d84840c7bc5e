"""How the shared layers are run on a CPU with bf16 instructions."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from adapter_reference import KINDS, random_artifact
from backends.engine import layers
from backends.engine.layers import filled_length, served_layers
from backends.engine.precision import Precision
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.root.geometry import RootGeometry
from backends.root.packed import PackedLinear
from backends.root.store import RootFolder
from layer_cases import LayerCases

RELATIVE_ERROR_OF_BF16 = 0.03

GEOMETRY = RootGeometry(100, 32, 128, 4, 1, 2, 32, 2, 1e-12, "gelu")
needs_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bf16 instructions"
)


@needs_bf16
@pytest.mark.parametrize("block_width", [128, 64, 32])
@pytest.mark.parametrize("mixed", [True, False])
def test_packed_layers_equal_the_plain_ones(block_width: int, mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed-forward part in one to four blocks; alone, each kind of adapters decides where residuals are added."""
    monkeypatch.setattr(layers, "_BLOCK_WIDTH", block_width)
    cases = LayerCases(GEOMETRY, torch.bfloat16)
    packed = served_layers(cases.upper(), GEOMETRY.activation, Precision(torch.bfloat16), torch.device("cpu"))
    for name, error in cases.errors(packed, mixed):
        assert error < RELATIVE_ERROR_OF_BF16, f"{name}: {error:.4f}"


@needs_bf16
def test_batches_of_any_lengths_meet_products_of_few_sizes(built_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product is compiled for each number of tokens; one for every number would cost a gigabyte and the time."""
    seen: set[int] = set()
    compute, activated = PackedLinear.__call__, PackedLinear.activated

    def watched(linear: PackedLinear, inputs: Tensor, plus: Tensor | None = None) -> Tensor:
        seen.add(len(inputs))
        return compute(linear, inputs, plus)

    def watched_activated(linear: PackedLinear, inputs: Tensor, fused: tuple[str, str]) -> Tensor:
        seen.add(len(inputs))
        return activated(linear, inputs, fused)

    monkeypatch.setattr(PackedLinear, "__call__", watched)
    monkeypatch.setattr(PackedLinear, "activated", watched_activated)
    root = RootFolder(built_home.root("tiny"))
    stack = UpperStack(root, StackSettings(dtype="bf16", num_slots=2))
    chance = random.Random(5)
    artifact = random_artifact(chance, root, KINDS[0])
    hplm = stack.ready(1, lambda: artifact)
    for num_tokens in range(1, 129):
        lengths = [16] * (num_tokens // 16) + [num_tokens % 16] * (num_tokens % 16 > 0)
        rows = [torch.randn(length, root.geometry.hidden_size) for length in lengths]
        stack.run(stack.pack(rows, [hplm] * len(rows)), [hplm] * len(rows))
    assert seen == {32, 64, 96, 128}


def test_tokens_are_filled_up_to_few_numbers_and_never_cut() -> None:
    lengths = [filled_length(num_tokens) for num_tokens in range(1, 2049)]
    assert all(length >= num_tokens for num_tokens, length in enumerate(lengths, start=1))
    assert len(set(lengths)) <= 64 and lengths == sorted(lengths)

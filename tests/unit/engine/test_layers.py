"""How the shared layers are run on a CPU with bf16 instructions."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from adapter_reference import KINDS, random_artifact
from backends.engine.layers import _PackedLinear, filled_length
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.root.store import RootFolder


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bf16 instructions")
def test_batches_of_any_lengths_meet_products_of_few_sizes(built_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product is compiled for each number of tokens; one for every number would cost a gigabyte and the time."""
    seen: set[int] = set()
    compute = _PackedLinear.__call__

    def watched(linear: _PackedLinear, inputs: Tensor, plus: Tensor | None = None) -> Tensor:
        seen.add(len(inputs))
        return compute(linear, inputs, plus)

    monkeypatch.setattr(_PackedLinear, "__call__", watched)
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

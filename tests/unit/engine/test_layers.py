"""How the shared layers are run on a CPU with bf16 instructions."""

from __future__ import annotations

import copy
import random
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor, nn

from adapter_reference import KINDS, random_adapters, random_artifact
from backends.adapters.adapter_set import AdapterSet
from backends.adapters.device_bank import AdapterBank
from backends.adapters.product import SegmentedAdapters
from backends.adapters.segments import Segment
from backends.engine import layers
from backends.engine.layers import filled_length, served_layers
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.root.geometry import RootGeometry
from backends.root.packed import PackedLinear
from backends.root.store import RootFolder
from backends.root.upper import UpperLayers

RELATIVE_ERROR_OF_BF16 = 0.03

GEOMETRY = RootGeometry(100, 32, 128, 4, 1, 2, 32, 2, 1e-12, "gelu")
NUM_SLOTS = len(KINDS) + 1
needs_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bf16 instructions"
)


def random_upper() -> UpperLayers:
    """No bias is zero and no norm the identity, so that each left out or taken twice shows."""
    upper = UpperLayers(GEOMETRY).eval().requires_grad_(False)
    for parameter in upper.parameters():
        parameter.copy_(0.3 * torch.randn_like(parameter))
    for norm in upper.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.weight.add_(1.0)
    return upper


def gated(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """In place of attention, so that segments may be computed one by one."""
    return torch.tanh(query) + key * 0.5 + value


@needs_bf16
@pytest.mark.parametrize("block_width", [128, 64, 32])
@pytest.mark.parametrize("mixed", [True, False])
def test_packed_layers_equal_the_plain_ones(block_width: int, mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed-forward part in one to four blocks; alone, each kind of adapters decides where residuals are added."""
    monkeypatch.setattr(layers, "_BLOCK_WIDTH", block_width)
    seed = random.randrange(1 << 32)
    torch.manual_seed(seed)
    chance = random.Random(seed)
    upper = random_upper()
    bank = AdapterBank(NUM_SLOTS, GEOMETRY, 32, torch.bfloat16, torch.device("cpu"))
    held = [AdapterSet(), *(random_adapters(chance, GEOMETRY, kind) for kind in KINDS)]
    for slot, adapters in enumerate(held[1:], start=1):
        bank.make_room(adapters)
        bank.fill(slot, adapters)
    packed = served_layers(copy.deepcopy(upper), GEOMETRY.activation, torch.bfloat16, torch.device("cpu"))
    batches = [list(range(NUM_SLOTS))] if mixed else [[slot] for slot in range(NUM_SLOTS)]
    for slots in batches:
        ends = list(accumulate(chance.randint(1, 40) for _ in slots))
        segments = [Segment(slot, start, end) for slot, (start, end) in zip(slots, pairwise([0, *ends]), strict=True)]
        hidden = torch.randn(ends[-1], GEOMETRY.hidden_size).bfloat16()
        with torch.inference_mode():
            got = packed(hidden, gated, SegmentedAdapters(bank, segments)).float()
            expected = torch.cat([upper(hidden[one.tokens].float(), gated, held[one.slot]) for one in segments])
        error = (got - expected).norm() / expected.norm()
        assert error < RELATIVE_ERROR_OF_BF16, f"seed {seed}, slots {slots}: {error:.4f}"


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

"""Every layout holds every row once, and its attention is that of each row alone."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from backends.adapters.length_groups import length_groups
from backends.engine.layouts import Grid, Isolated, attention
from backends.engine.layouts.attention import TiledAttention, reads_heads_of
from backends.engine.layouts.concatenated import Concatenated
from backends.engine.layouts.micro_batches import Sharing, shares
from backends.engine.layouts.ragged import Ragged
from bench.kit.layouts import ALL_LAYOUTS

CPU = torch.device("cpu")
WHOLE = Sharing()
HEADS, HIDDEN = 2, 8


def random_lengths(chance: random.Random) -> list[int]:
    longest = chance.choice([1, 3, 20, 100, 400])
    return [chance.randint(1, longest) for _ in range(chance.randint(1, 40))]


def attended_alone(states: Tensor) -> Tensor:
    """Attention of one row `[L, 3 H]`, head by head."""
    query, key, value = states.chunk(3, dim=-1)
    size = HIDDEN // HEADS
    heads = [
        torch.softmax(q @ k.T / size**0.5, dim=-1) @ v
        for q, k, v in zip(query.split(size, 1), key.split(size, 1), value.split(size, 1), strict=True)
    ]
    return torch.cat(heads, dim=-1)


def check_grid(grid: Grid, lengths: list[int]) -> None:
    assert [lengths[index] for index in grid.order] == grid.lengths
    ends = [start + length for start, length in zip(grid.starts, grid.lengths, strict=True)]
    assert all(end <= start for end, start in zip(ends, [*grid.starts[1:], grid.num_tokens], strict=True))
    fused = torch.randn(grid.num_tokens, 3 * HIDDEN)
    chosen = attention(grid, HEADS, HIDDEN // HEADS, torch.float32, CPU)
    for attend in (chosen, TiledAttention(HEADS, grid.tiles(), torch.float32, CPU)):
        context = attend(0, *fused.chunk(3, dim=-1))
        assert context.isfinite().all()
        for start, end in zip(grid.starts, ends, strict=True):
            torch.testing.assert_close(context[start:end], attended_alone(fused[start:end]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALL_LAYOUTS)
def test_rows_attend_to_themselves_only(name: str) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        lengths = random_lengths(chance)
        slots = [chance.randint(1, 5) for _ in lengths]
        sharing = Sharing(chance.randint(1, 4), chance.choice([1, 50, 400]), chance.choice([100, 1000, None]))
        grids = ALL_LAYOUTS[name](sharing).arrange(slots, lengths)
        assert sorted(index for grid in grids for index in grid.order) == list(range(len(lengths))), f"seed {seed}"
        for grid in grids:
            check_grid(grid, lengths)


def test_isolated_rows_are_not_spoilt_by_others() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        lengths = random_lengths(chance)
        sharing = Sharing(chance.randint(1, 4), chance.choice([1, 50, 400]), chance.choice([100, 1000, None]))
        grids = Isolated(sharing).arrange([chance.randint(1, 5) for _ in lengths], lengths)
        assert sorted(index for grid in grids for index in grid.order) == list(range(len(lengths))), f"seed {seed}"
        for grid in grids:
            check_grid(grid, lengths)
            fused = torch.randn(grid.num_tokens, 3 * HIDDEN)
            rows = [slice(start, start + length) for start, length in zip(grid.starts, grid.lengths, strict=True)]
            spoilt = [row for row in rows if chance.random() < 0.3]
            for row in spoilt:
                fused[row] = chance.choice([float("nan"), float("inf")])
            context = attention(grid, HEADS, HIDDEN // HEADS, torch.float32, CPU)(0, *fused.chunk(3, dim=-1))
            for row in rows:
                assert context[row].isfinite().all() == (row not in spoilt), f"seed {seed}"


@pytest.mark.parametrize("sharing", [Sharing(2, 160, 1024), Sharing(3, 1), Sharing(1, 1, 2048)])
def test_ragged_has_no_padding_and_cuts_large_batches_evenly(sharing: Sharing) -> None:
    chance = random.Random(1)
    for _ in range(50):
        lengths = [chance.randint(1, 128) for _ in range(64)]
        slots = [chance.randint(1, 64) for _ in lengths]
        grids = Ragged(sharing).arrange(slots, lengths)
        assert sum(grid.num_tokens for grid in grids) == sum(lengths)
        assert all(grid.is_packed for grid in grids)
        assert len(grids) == sharing.count(sum(lengths))
        assert max(grid.num_tokens for grid in grids) <= sum(lengths) / len(grids) + 128


def test_one_hplm_s_rows_stay_together() -> None:
    slots = [1] * 4 + [2] * 4 + [3] * 4
    batches = shares(range(12), slots, [10] * 12, Sharing(side_by_side=1, most_tokens=40))
    assert [[slots[index] for index in batch] for batch in batches] == [[1] * 4, [2] * 4, [3] * 4]
    slots = [slot for slot in range(20) for _ in range(3)]
    batches = shares(range(60), slots, [10] * 60, Sharing(side_by_side=2))
    assert [[slots[index] for index in batch] for batch in batches] == [slots[:30], slots[30:]]


def test_groups_of_lengths_are_the_cheapest_there_are() -> None:
    """Against trying every cut."""
    for seed in range(200):
        chance = random.Random(seed)
        lengths = [chance.randint(1, 50) for _ in range(chance.randint(1, 9))]
        cost = chance.choice([0, 5, 30, 1000])
        found = [[lengths[index] for index in group] for group in length_groups(lengths, cost)]
        assert sorted(length for group in found for length in group) == sorted(lengths)
        ordered = sorted(lengths)

        def price(cuts: list[int], ordered: list[int] = ordered, cost: int = cost) -> int:
            return sum(cost + (b - a) * ordered[b - 1] for a, b in pairwise([0, *cuts, len(ordered)]))

        least = min(
            price([place for place in range(1, len(lengths)) if chosen >> place & 1])
            for chosen in range(0, 1 << len(lengths), 2)
        )
        assert sum(cost + len(group) * max(group) for group in found) == least, f"seed {seed}"


def test_rows_of_concatenated_texts() -> None:
    lengths = [60, 10, 100, 40, 90, 30]
    slots = [1] * len(lengths)
    pure = Concatenated(WHOLE).arrange(slots, lengths)[0]
    assert pure.num_tokens == 400
    slotted = Concatenated(WHOLE, num_slots=None).arrange(slots, lengths)[0]
    assert slotted.num_tokens == 400  # 4 slots of 100, all in one row
    assert {tile.window for tile in slotted.tiles()} == {112}
    assert {tile.window for tile in pure.tiles()} == {400}
    longer = Concatenated(WHOLE).arrange([1], [500])[0]
    assert longer.num_tokens == 500


@pytest.mark.parametrize(("size", "is_read"), [(64, True), (32, True), (256, True), (26, False), (264, False)])
def test_a_gpu_computes_heads_of_any_size(size: int, is_read: bool) -> None:
    """Where its kernel for rows of any lengths reads none of that size, tile by tile."""
    assert reads_heads_of(size) == is_read


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 26, 264])
def test_attention_on_a_gpu_is_that_of_a_cpu(size: int) -> None:
    lengths, gpu = [5, 1, 40, 17], torch.device("cuda")
    (grid,) = Ragged(WHOLE).arrange([0, 0, 1, 2], lengths)
    fused = torch.randn(sum(lengths), 3 * 2 * size).bfloat16()
    expected = attention(grid, 2, size, torch.bfloat16, CPU)(0, *fused.chunk(3, dim=-1))
    found = attention(grid, 2, size, torch.bfloat16, gpu)(0, *fused.to(gpu).chunk(3, dim=-1))
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-2, atol=2e-2)

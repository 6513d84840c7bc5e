"""A million rows over slots that are evicted and filled again all the time: nobody ever gets another's weights.

An hPLM's adapters are made so that its number can be read from what they do: a bottleneck that adds the number, a
LayerNorm that puts the number in place of everything, or both. A LoRA beside them, whose last rank brings the number.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.device_bank import AdapterBank, PoolKey
from backends.adapters.parts import Bottleneck, Lora, Norm
from backends.adapters.product import SegmentedAdapters
from backends.adapters.segments import Segment
from backends.adapters.slots import SlotTable
from backends.root.geometry import RootGeometry

HIDDEN = 8
GEOMETRY = RootGeometry(100, HIDDEN, 8, 2, 1, 1, 32, 2, 1e-12, "gelu")
NUM_HPLMS, NUM_SLOTS, ROWS_CHECKED = 400, 65, 1_000_000
KINDS = ("bottleneck", "norm", "both")
RANKS = (3, 16, 24, 30)


def numbered(number: int) -> AdapterSet:
    """Whatever its kind, zeros become its number; and so do ones, by its LoRA. Neighbours have one rank."""
    kind, width = KINDS[number % len(KINDS)], (4, 12, 20)[number // len(KINDS) % 3]
    up_bias = torch.full((1, HIDDEN), float(number))
    zeros = torch.zeros(1, width, HIDDEN)
    bottleneck = Bottleneck(zeros, torch.zeros(1, width), zeros.transpose(1, 2).contiguous(), up_bias)
    norm = Norm(torch.zeros(1, HIDDEN), torch.full((1, HIDDEN), float(number)))
    rank = RANKS[number * len(RANKS) // (NUM_HPLMS + 1)]
    lora = Lora(torch.zeros(1, rank, HIDDEN), torch.zeros(1, HIDDEN, rank))
    lora.down[0, :, 0] = 1
    lora.up[0, :, -1] = number
    return AdapterSet(
        {} if kind == "norm" else {"attention": bottleneck},
        {"key": lora},
        {} if kind == "bottleneck" else {"attention": norm},
    )


class Nothing(nn.LayerNorm):
    """Shows what comes into the norm."""

    def forward(self, input: Tensor) -> Tensor:
        return input.clone()


def test_no_row_meets_the_weights_of_another() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    slots = SlotTable(AdapterBank(NUM_SLOTS, GEOMETRY, 32, torch.float32, torch.device("cpu")))
    hplms = {number: numbered(number) for number in range(1, NUM_HPLMS + 1)}
    loads = checked = shrunk = 0
    rows_before: dict[PoolKey, int] = {}

    def load(number: int) -> AdapterSet:
        nonlocal loads
        loads += 1
        return hplms[number]

    norm = Nothing(HIDDEN)
    with torch.inference_mode():
        while checked < ROWS_CHECKED:
            # Now of all, now of one rank only, so that pools grow and shrink.
            first = chance.choice([0, chance.randrange(NUM_HPLMS - NUM_SLOTS)])
            those = range(first + 1, first + NUM_SLOTS) if first else range(1, NUM_HPLMS + 1)
            numbers = chance.sample(those, chance.randint(1, NUM_SLOTS - 1))
            leases = [slots.acquire(number, lambda number=number: load(number)) for number in numbers]  # type: ignore[misc]
            members = sorted(zip((slots.check(lease) for lease in leases), numbers, strict=True))
            rows_each, row_tokens = chance.choice([None, 80]), chance.randint(1, 3)
            num_rows = [rows_each or chance.randint(1, 160) for _ in members]
            lengths = [rows * row_tokens for rows in num_rows]
            segments, start = [], 0
            for (slot, _), length in zip(members, lengths, strict=True):
                segments.append(Segment(slot, start, start + length))
                start += length
            expected = torch.tensor([float(number) for _, number in members]).repeat_interleave(torch.tensor(lengths))
            adapters = SegmentedAdapters(slots.bank, segments).layer(0)
            got = adapters.add_and_norm("attention", torch.zeros(start, HIDDEN), torch.zeros(start, HIDDEN), norm)
            assert torch.equal(got, expected[:, None].expand(-1, HIDDEN)), f"seed {seed} after {checked} rows"
            outputs = adapters.project("query_key_value", torch.ones(start, HIDDEN), torch.zeros(start, 3 * HIDDEN))
            keys = outputs[:, HIDDEN : 2 * HIDDEN]
            assert torch.equal(keys, expected[:, None].expand(-1, HIDDEN)), f"seed {seed} after {checked} rows"
            checked += sum(num_rows)
            rows = {key: pool.num_rows for key, pool in slots.bank.pools.items()}
            shrunk += sum(rows_before.get(key, 0) > number for key, number in rows.items())
            rows_before = rows
            for lease in leases:
                slots.release(lease)
    assert loads > 5 * NUM_HPLMS
    assert shrunk > 5

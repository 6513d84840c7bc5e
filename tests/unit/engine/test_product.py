"""Five thousand small mixed batches: adapters of many hPLMs at once against each segment alone, in fp32 and bf16."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapter_reference import KINDS, random_adapters
from backends.adapters.adapter_set import PROJECTED, SITES, AdapterSet
from backends.adapters.device_bank import AdapterBank
from backends.adapters.parts import Norm
from backends.adapters.product import SegmentedAdapters
from backends.adapters.row_selection import RowSelection
from backends.adapters.segments import (
    AlignedSegments,
    Bf16Segments,
    CompiledSegments,
    FlatSegments,
    OneSegment,
    PaddedSegments,
    Segment,
    SegmentGroup,
    grouped,
)
from backends.kernels.bf16_products import HAS_BF16_PRODUCTS
from backends.root.encoder import Projection, Site
from backends.root.geometry import RootGeometry
from seeds import SEED

GEOMETRY = RootGeometry(100, 16, 24, 4, 1, 2, 32, 2, 1e-12, "gelu")
CPU = torch.device("cpu")
CASES = {torch.float32: 4000, torch.bfloat16: 1000}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 6e-2}
NUM_SLOTS = 9
SIZES: dict[Projection, tuple[int, int]] = {
    "query_key_value": (16, 48),
    "attention_output": (16, 16),
    "ffn_in": (16, 24),
    "ffn_out": (24, 16),
}


class Batches:
    """Random segments over slots that are filled anew all the time."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.chance = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype = dtype
        known = [random_adapters(self.chance, GEOMETRY, kind) for kind in KINDS * 4]
        self.known = [adapters.to(dtype).to(torch.float32) for adapters in known]
        self.bank = AdapterBank(NUM_SLOTS, GEOMETRY, 32, dtype, CPU)
        self.held = {0: AdapterSet()}

    def segments(self) -> list[Segment]:
        if len(self.held) < NUM_SLOTS or self.chance.random() < 0.5:
            slot, adapters = self.chance.randint(1, NUM_SLOTS - 1), self.chance.choice(self.known)
            self.bank.make_room(adapters)
            self.bank.fill(slot, adapters)
            self.held[slot] = adapters
        slots = self.chance.sample(sorted(self.held), self.chance.randint(1, len(self.held)))
        longest = self.chance.choice([1, 2, 6])
        result, start = [], 0
        for slot in sorted(slots) if self.chance.random() < 0.5 else slots:
            length = longest if self.chance.random() < 0.6 else self.chance.randint(1, longest)
            result.append(Segment(slot, start, start + length))
            start += length
        return result

    def states(self, tokens: int, width: int = GEOMETRY.hidden_size) -> Tensor:
        return torch.randn(tokens, width).to(self.dtype)


def require_close(got: Tensor, expected: Tensor, case: str) -> None:
    limit = TOLERANCE[got.dtype] * max(1.0, float(expected.abs().max()))
    assert float((got.float() - expected).abs().max()) <= limit, case


@pytest.mark.parametrize("dtype", list(CASES))
def test_many_at_once_equal_each_alone(dtype: torch.dtype) -> None:
    seed = random.randrange(1 << 32)
    batches = Batches(dtype, seed)
    norm = nn.LayerNorm(GEOMETRY.hidden_size, eps=1e-12)
    nn.init.normal_(norm.weight)
    served_norm = nn.LayerNorm(GEOMETRY.hidden_size, eps=1e-12).to(dtype)
    served_norm.load_state_dict(norm.state_dict())
    with torch.inference_mode():
        for case in range(CASES[dtype]):
            name = f"seed {seed}, case {case}"
            segments = batches.segments()
            total, layer = segments[-1].end, batches.chance.randrange(GEOMETRY.num_upper_layers)
            mixed = SegmentedAdapters(batches.bank, segments).layer(layer)
            if case % 2:
                site: Site = batches.chance.choice(["attention", "output"])
                states, residual = batches.states(total), batches.states(total)
                expected = torch.cat(
                    [
                        batches.held[segment.slot]
                        .layer(layer)
                        .add_and_norm(site, states[segment.tokens].float(), residual[segment.tokens].float(), norm)
                        for segment in segments
                    ]
                )
                require_close(mixed.add_and_norm(site, states, residual, served_norm), expected, name)
                alone = [batches.held[segment.slot].bottlenecks.get(site) for segment in segments]
                reads = any(part is not None and not part.norm_first for part in alone)
                assert mixed.reads_states(site) == reads, name
                if not reads:
                    require_close(mixed.add_and_norm(site, states + residual, None, served_norm), expected, name)
            else:
                projection: Projection = batches.chance.choice(list(SIZES))
                inputs, outputs = (batches.states(total, width) for width in SIZES[projection])
                expected = torch.cat(
                    [
                        batches.held[segment.slot]
                        .layer(layer)
                        .project(projection, inputs[segment.tokens].float(), outputs[segment.tokens].float())
                        for segment in segments
                    ]
                )
                changed = any(m in batches.held[s.slot].loras for s in segments for m in PROJECTED[projection])
                assert mixed.changes(projection) == changed, name
                require_close(mixed.project(projection, inputs, outputs), expected, name)


def test_a_norm_that_no_segment_needs_is_not_computed() -> None:
    torch.manual_seed(SEED)
    norms = {site: Norm(torch.randn(2, 16), torch.randn(2, 16)) for site in SITES}
    bank = AdapterBank(3, GEOMETRY, 32, torch.float32, CPU)
    for slot, adapters in enumerate((AdapterSet(norms=norms), AdapterSet()), start=1):
        bank.make_room(adapters)
        bank.fill(slot, adapters)
    of_nan = nn.LayerNorm(16)
    nn.init.constant_(of_nan.weight, torch.nan)
    states = torch.randn(9, 16)
    with torch.inference_mode():
        for second, is_needed in ((1, False), (2, True)):
            segments = [Segment(1, 0, 4), Segment(second, 4, 9)]
            for site in SITES:
                normed = SegmentedAdapters(bank, segments).layer(1).add_and_norm(site, states, None, of_nan)
                assert bool(normed[:4].isfinite().all()) and bool(normed[4:].isnan().any()) == is_needed


def test_sizes_that_no_grouped_product_takes_are_multiplied_all_the_same() -> None:
    geometry = replace(GEOMETRY, hidden_size=37, intermediate_size=19, num_heads=1)
    rng = random.Random(2)
    torch.manual_seed(2)
    held = [random_adapters(rng, geometry, kind).to(torch.float32) for kind in KINDS]
    bank = AdapterBank(len(held) + 1, geometry, 32, torch.float32, CPU)
    for slot, adapters in enumerate(held, start=1):
        bank.make_room(adapters)
        bank.fill(slot, adapters)
    bounds = sorted(rng.sample(range(1, 99), len(held) - 1))
    segments = [Segment(slot + 1, start, end) for slot, (start, end) in enumerate(pairwise([0, *bounds, 99]))]
    mixed = SegmentedAdapters(bank, segments).layer(1)
    for projection, (inputs, outputs) in {"ffn_in": (37, 19), "query_key_value": (37, 111)}.items():
        states, total = torch.randn(99, inputs), torch.randn(99, outputs)
        expected = torch.cat(
            [
                adapters.layer(1).project(projection, states[segment.tokens], total[segment.tokens])  # type: ignore[arg-type]
                for segment, adapters in zip(segments, held, strict=True)
            ]
        )
        with torch.inference_mode():
            require_close(mixed.project(projection, states, total), expected, projection)  # type: ignore[arg-type]


def random_groups(chance: random.Random) -> tuple[list[SegmentGroup], list[Segment], list[int]]:
    """Make groups of all kinds that can hold the same random segments, those of a GPU too; also segments and rows."""
    rows = chance.choices(range(chance.choice([4, 12, 40])), k=chance.randint(1, 6))
    length = chance.randint(1, 6)
    if chance.random() < 0.5:
        bounds = [length * index for index in range(len(rows) + 1)]
    else:
        bounds = sorted(chance.sample(range(40), len(rows) + 1))
    segments = [Segment(1, start, end) for start, end in pairwise(bounds)]
    selection = RowSelection(rows, CPU)
    groups: list[SegmentGroup] = [
        CompiledSegments(segments, rows),
        FlatSegments(segments, rows, CPU),
        PaddedSegments(segments, selection, CPU),
    ]
    if HAS_BF16_PRODUCTS:
        groups.append(Bf16Segments(segments, rows))
    if len({segment.length for segment in segments}) == 1:
        groups.append(AlignedSegments(segments, selection))
    if len(segments) == 1:
        groups.append(OneSegment(segments[0], rows[0]))
    return groups, segments, rows


@pytest.mark.parametrize("rank", [8, 16])
def test_all_kinds_of_groups_equal_segments_alone(rank: int) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    torch.manual_seed(seed)
    down, bias = torch.randn(2, 40, 16, rank).bfloat16(), torch.randn(2, 40, rank).bfloat16()
    up, vectors = torch.randn(2, 40, rank, 16).bfloat16(), torch.randn(2, 40, 16).bfloat16()
    for _ in range(100):
        groups, segments, rows = random_groups(chance)
        states, layer = torch.randn(40, 16).bfloat16(), chance.randrange(2)
        added, normed = states.float(), torch.full((40, 16), 3.0)
        for row, segment in zip(rows, segments, strict=True):
            own = states[segment.tokens].float()
            inner = own @ down[layer, row].float() + bias[layer, row].float()
            added[segment.tokens] += inner @ up[layer, row].float() + vectors[layer, row].float()
            shifted = functional.layer_norm(own, (16,)) * vectors[layer, row].float() + vectors[layer, row].float()
            normed[segment.tokens] = shifted
        for group in groups:
            name = f"{type(group).__name__}, seed {seed}"
            got, into = states.clone(), torch.full((40, 16), 3.0).bfloat16()
            group.add_product(got, group.multiply(states, down, layer, bias), up, layer, vectors)
            group.normalise(states, vectors, vectors, layer, 1e-5, into)
            require_close(got, added, name)
            require_close(into, normed, name)


@pytest.mark.parametrize(
    ("dtype", "has_products", "kind"),
    [
        (torch.bfloat16, True, Bf16Segments),
        (torch.bfloat16, False, CompiledSegments),
        (torch.float32, True, CompiledSegments),
    ],
)
def test_what_multiplies_segments_on_a_cpu(
    dtype: torch.dtype, has_products: bool, kind: type[SegmentGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.adapters.segments.HAS_BF16_PRODUCTS", has_products)
    pool = {"down": torch.zeros(1, 2, 16, 16, dtype=dtype)}
    (group,) = grouped([Segment(1, 0, 5), Segment(2, 5, 40)], [0, 1], pool)
    assert type(group) is kind
    (large,) = grouped([Segment(1, 0, 128), Segment(2, 128, 256)], [0, 1], pool)
    assert type(large) is kind, "whatever is beside a token, its numbers are the same"

"""Compiled loops of a CPU at their borders: odd sizes, long and empty rows, NaN in one row, other processors."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import backends.kernels
from backends.adapters.segments import Bf16Segments, CompiledSegments, Segment
from backends.kernels.attention import attend_in_rows
from backends.kernels.bf16_products import HAS_BF16_PRODUCTS
from backends.kernels.compiling import compiled, flat_memory_of, memory_of
from seeds import SEED

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
GUARD = 7.0
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])

_WITHOUT_FMA = """
import numpy as np
from numba import njit, types
from backends.kernels.bf16_products import HAS_BF16_PRODUCTS
from backends.kernels.tile import multiply_tile
line = types.float32[::1]
@njit([types.void(line, line, line, types.int64)])
def product(left, right, out, count):
    multiply_tile(left, 0, count, right, 0, 16, out, 0, 16, count)
left, right = (np.arange(size, dtype=np.float32) % 5 for size in (6 * 9, 9 * 16))
out = np.zeros(6 * 16, np.float32)
product(left, right, out, 9)
assert np.array_equal(out.reshape(6, 16), left.reshape(6, 9) @ right.reshape(9, 16))
assert not HAS_BF16_PRODUCTS
assert not any("fmaf" in assembly for assembly in product.inspect_asm().values())
"""
_COUNT = "from backends.kernels.compiling import total_of as t; print(sum(t.stats.cache_hits.values()))"


def attended(fused: Tensor, starts: list[int], lengths: list[int], heads: int) -> Tensor:
    context = torch.full((len(fused), fused.shape[1] // 3), GUARD, dtype=fused.dtype)
    states = [flat_memory_of(part) for part in fused.chunk(3, dim=-1)]
    rows = np.array(starts, np.int64), np.array(lengths, np.int64)
    attend_in_rows(*states, fused.stride(0), *rows, heads, memory_of(context))
    return context


def attended_by_pytorch(row: Tensor, heads: int) -> Tensor:
    split = len(row), heads, row.shape[1] // (3 * heads)
    query, key, value = (part.reshape(split).transpose(0, 1) for part in row.float().chunk(3, dim=-1))
    return functional.scaled_dot_product_attention(query, key, value).transpose(0, 1).flatten(1)


@DTYPES
@pytest.mark.parametrize("size", [1, 5, 16, 20, 64])
def test_attention_of_rows_of_any_length(dtype: torch.dtype, size: int) -> None:
    """Rows of no token, of one, and of more than a tile, with tokens of no row between them."""
    rng = random.Random(SEED)
    lengths, heads = [0, 1, 2, 6, 7, 16, 17, 300, 1, 0, 33], 3
    rng.shuffle(lengths)
    gaps = [rng.randint(0, 3) for _ in lengths]
    ends = list(accumulate(length + gap for length, gap in zip(lengths, gaps, strict=True)))
    starts = [end - length for end, length in zip(ends, lengths, strict=True)]
    torch.manual_seed(SEED)
    fused = torch.randn(ends[-1], 3 * heads * size).to(dtype)
    context = attended(fused, starts, lengths, heads)
    is_of_row = torch.zeros(len(fused), dtype=torch.bool)
    for start, length in zip(starts, lengths, strict=True):
        own = slice(start, start + length)
        is_of_row[own] = True
        expected = attended_by_pytorch(fused[own], heads)
        torch.testing.assert_close(context[own].float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert (context[~is_of_row] == GUARD).all()


@DTYPES
@pytest.mark.parametrize("spoilt", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_no_number_spoils_itself_only(dtype: torch.dtype, spoilt: float) -> None:
    torch.manual_seed(SEED)
    fused, starts, lengths = torch.randn(40, 3 * 2 * 20).to(dtype), [0, 9, 20], [9, 11, 20]
    plain = attended(fused, starts, lengths, 2)
    fused[9:20] = spoilt
    context = attended(fused, starts, lengths, 2)
    assert not context[9:20].isfinite().any()
    assert torch.equal(context[:9], plain[:9]) and torch.equal(context[20:], plain[20:])


def test_large_scores_are_no_infinity() -> None:
    fused = torch.full((3, 3 * 16), 1e3)
    fused[1, 16:32] = -1e3
    torch.testing.assert_close(attended(fused, [0], [3], 1), attended_by_pytorch(fused, 1))


_KINDS = pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        pytest.param(CompiledSegments, torch.float32, id="fp32"),
        pytest.param(CompiledSegments, torch.bfloat16, id="bf16"),
        pytest.param(
            Bf16Segments,
            torch.bfloat16,
            id="bf16-products",
            marks=pytest.mark.skipif(not HAS_BF16_PRODUCTS, reason="this processor has no AVX512-BF16"),
        ),
    ],
)
Kind = type[CompiledSegments]


@_KINDS
@pytest.mark.parametrize("has_vectors", [True, False])
@pytest.mark.parametrize(
    ("inputs", "rank"), [(1, 1), (20, 3), (16, 16), (33, 17), (48, 32), (32, 8), (32, 4), (24, 24), (30, 48)]
)
def test_products_of_segments_touch_their_own_tokens_only(
    kind: Kind, dtype: torch.dtype, has_vectors: bool, inputs: int, rank: int
) -> None:
    """States are parts of a wider tensor, as those of one projection are."""
    torch.manual_seed(SEED)
    bounds, rows = [(0, 1), (3, 9), (9, 17), (17, 17), (20, 36), (36, 53)], [2, 0, 2, 1, 1, 0]
    group = kind([Segment(1, *each) for each in bounds], rows)
    down = (torch.randn(1, 3, inputs, rank) / inputs**0.5).to(dtype)
    up = (torch.randn(1, 3, rank, inputs) / rank**0.5).to(dtype)
    bias, vectors = torch.randn(1, 3, rank).to(dtype), torch.randn(1, 3, inputs).to(dtype)
    if not has_vectors:
        bias, vectors = bias.zero_(), vectors.zero_()
    wide = torch.randn(54, 3 * inputs).to(dtype)
    is_of_segment = torch.zeros(len(wide), dtype=torch.bool)
    for start, end in bounds:
        is_of_segment[start:end] = True
    for part in range(3):
        whole = wide.clone()
        states = whole.chunk(3, dim=-1)[part]
        inner, expected = group.multiply(states, down, 0, bias if has_vectors else None), wide.float()
        inner[~is_of_segment] = torch.nan
        tolerance = TOLERANCE[dtype] if inner.dtype == dtype else TOLERANCE[torch.float32]
        for (start, end), row in zip(bounds, rows, strict=True):
            own = states[start:end].float() @ down[0, row].float() + bias[0, row].float()
            torch.testing.assert_close(inner[start:end].float(), own, rtol=tolerance, atol=tolerance)
            into = expected[start:end, part * inputs : (part + 1) * inputs]
            into += inner[start:end].float() @ up[0, row].float() + vectors[0, row].float()
        group.add_product(states, inner, up, 0, vectors if has_vectors else None)
        torch.testing.assert_close(whole.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        is_own = torch.zeros_like(wide, dtype=torch.bool)
        is_own[is_of_segment, part * inputs : (part + 1) * inputs] = True
        assert torch.equal(whole[~is_own], wide[~is_own])


@_KINDS
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize(("inputs", "rank"), [(1, 1), (20, 3), (48, 32), (32, 8), (384, 8), (24, 24), (30, 48)])
def test_a_pair_of_products_is_one_after_the_other_bit_for_bit(
    kind: Kind, dtype: torch.dtype, layer: int, inputs: int, rank: int, seed: int
) -> None:
    """The second adds to a part of a wider tensor, as to those of one projection, of another width than the inputs."""
    torch.manual_seed(seed)
    bounds, rows = [(0, 1), (3, 9), (9, 17), (17, 17), (20, 36), (36, 53)], [2, 0, 2, 1, 1, 0]
    group = kind([Segment(1, *each) for each in bounds], rows)
    down, up = torch.randn(3, 3, inputs, rank).to(dtype), torch.randn(3, 3, rank, 2 * inputs).to(dtype)
    states, one_by_one = torch.randn(54, inputs).to(dtype), torch.randn(54, 6 * inputs).to(dtype)
    at_once = one_by_one.clone()
    group.add_product(one_by_one.chunk(3, dim=-1)[1], group.multiply(states, down, layer), up, layer)
    group.add_pair(at_once.chunk(3, dim=-1)[1], states, down, up, layer)
    assert torch.equal(at_once, one_by_one), f"seed {seed}"


@_KINDS
@pytest.mark.parametrize("spoilt", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("token", [0, 7, 12])
@pytest.mark.parametrize("columns", [8, 16, 24])
def test_a_token_with_nan_or_infinity_spoils_no_other_product(
    kind: Kind, dtype: torch.dtype, spoilt: float, token: int, columns: int
) -> None:
    torch.manual_seed(SEED)
    states, weights = torch.randn(20, 32).to(dtype), torch.randn(1, 2, 32, columns).to(dtype)
    group = kind([Segment(1, 0, 13), Segment(2, 13, 20)], [1, 0])
    clean = group.multiply(states, weights, 0)
    states[token] = spoilt
    products = group.multiply(states, weights, 0)
    assert not products[token].isfinite().any()
    is_other = torch.arange(20) != token
    assert torch.equal(products[is_other], clean[is_other])


@_KINDS
@pytest.mark.parametrize("columns", [8, 16, 24])
def test_a_product_is_the_same_whatever_is_beside_it(kind: Kind, dtype: torch.dtype, columns: int) -> None:
    torch.manual_seed(SEED)
    row, weights = torch.randn(11, 32).to(dtype), torch.randn(1, 2, 32, columns).to(dtype)
    alone = kind([Segment(1, 0, 11)], [1]).multiply(row, weights, 0)
    for before in range(1, 9):
        states = torch.cat([torch.randn(before, 32).to(dtype), row, torch.randn(5, 32).to(dtype)])
        group = kind(
            [Segment(2, 0, before), Segment(1, before, before + 11), Segment(2, before + 11, len(states))], [0, 1, 0]
        )
        assert torch.equal(group.multiply(states, weights, 0)[before : before + 11], alone)


def test_loops_that_a_processor_lacks_say_so() -> None:
    def loop() -> None: ...

    with pytest.raises(RuntimeError, match="loop is not compiled for this processor"):
        compiled()(loop)()


def test_processors_without_fma_call_no_function_for_each_number() -> None:
    """A product of six tokens took 27 times as long."""
    others = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2,-fma,-fma4,-avx,-avx2,-avx512f"}
    if os.uname().machine != "x86_64":
        pytest.skip("the features are those of x86-64")
    done = subprocess.run([sys.executable, "-c", _WITHOUT_FMA], env={**os.environ, **others}, capture_output=True)
    assert not done.returncode, done.stderr.decode()


@pytest.fixture
def copied_room(tmp_path: Path) -> Path:
    """A copy of the compiled loops, with a cache of its own."""
    room = tmp_path / "backends" / "kernels"
    shutil.copytree(Path(backends.kernels.__file__).parent, room, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "backends" / "__init__.py").touch()
    return room


def cache_hits(room: Path) -> tuple[int, str]:
    """Import the loops; return how much the cache had of one of them, and what was logged."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    command = [sys.executable, "-c", _COUNT]
    done = subprocess.run(command, cwd=room.parent.parent, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout), done.stderr


@pytest.mark.long
def test_code_in_the_cache_is_made_again_where_another_file_of_its_room_has_changed(copied_room: Path) -> None:
    assert [cache_hits(copied_room)[0] for _ in range(2)] == [0, 1]
    with (copied_room / "tile.py").open("a") as file:
        file.write("# changed\n")
    assert cache_hits(copied_room)[0] == 0


@pytest.mark.long
def test_without_a_cache_that_can_be_read_loops_are_compiled_and_the_log_says_so(copied_room: Path) -> None:
    assert "compiled anew" not in cache_hits(copied_room)[1]
    (index,) = (copied_room / "__pycache__").glob("*.nbi")
    index.write_bytes(b"\x80\x63.")  # a pickle of a protocol that is none, which is a ValueError
    hits, log = cache_hits(copied_room)
    assert hits == 0 and "compiled anew at each start, because their cache cannot be used (ValueError)" in log

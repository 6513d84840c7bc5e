"""Products of segments in bf16, by the dot products of AVX512-BF16, which add two neighbouring products to a sum.

Sums are in fp32. States are read and written as they are stored, without a pass that converts them.

Shape:
    As in `segments.py`, of sizes that `fits_tiles`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from torch import Tensor

from backends.kernels.compiling import BF16, COUNT, COUNTS, FLAT_BF16, compiled
from backends.kernels.tile import TILE_COLUMNS

_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
HAS_BF16_PRODUCTS = {"+avx512bf16", "+avx512vl"} <= set(_FEATURES)
"""Whether loops are compiled for a processor with AVX512-BF16; elsewhere `add_bf16_products` raises RuntimeError."""
_TILE_ROWS = 8
"""Rows of a tile here. More would stay empty at the ends of short segments."""
_POOL = types.int16[:, :, :, ::1]
_NARROW = TILE_COLUMNS // 2
"""Columns of a tile at the end of a matrix that no whole tile fills, such as that of a rank of 8."""


class _Bf16(ir.types.Type):  # type: ignore[misc]  # llvmlite has no types
    """The type that LLVM calls bfloat, and llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bf16)

    def __hash__(self) -> int:
        return hash(_Bf16)


_INT16, _INT32, _INT64, _FP32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


def fits_tiles(matrices: Tensor) -> bool:
    """Whether matrices, `[…, in, out]`, can be multiplied here."""
    *_, count, columns = matrices.shape
    return count >= 2 and not count % 2 and not columns % _NARROW


def _tile(columns: int) -> Any:
    of_tile = _Columns(columns)

    @intrinsic
    def add_tile(
        typing: Any,
        left: Any,
        left_start: Any,
        left_row: Any,
        right: Any,
        right_start: Any,
        right_row: Any,
        vectors: Any,
        vector_start: Any,
        out: Any,
        out_start: Any,
        out_row: Any,
        rows: Any,
        count: Any,
    ) -> Any:
        """Add the product of `rows` rows, 1 to `_TILE_ROWS`, of `count` numbers, which is even and at least 2.

        Each matrix lies in an array in bf16, from an offset on, with the same distance between all its rows. Nothing
        checks that they end where the arrays do. Missing rows repeat the last one: all sums are begun before the first
        is stored, so it is stored with the same values each time.

        Semantics:
            out[i, j] += Σ_k left[i, k] · right[k, j] + vector[j] for the tile's columns j
        """
        ints = (types.int64,) * 2
        signature = types.void(left, *ints, right, *ints, vectors, types.int64, out, *ints, *ints)

        def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
            def address(at: int) -> Any:
                data = context.make_array(signature.args[at])(context, build, args[at]).data
                return build.gep(data, [args[at + 1]])

            last = build.sub(args[11], ir.Constant(_INT64, 1))
            numbers = [_smaller(build, ir.Constant(_INT64, row), last) for row in range(_TILE_ROWS)]
            lefts, outs = (
                [build.gep(base, [build.mul(number, distance)]) for number in numbers]
                for base, distance in ((address(0), args[2]), (address(8), args[10]))
            )
            initial = [of_tile.sums(build, out) for out in outs]
            if signature.args[6] != types.none:
                vector = of_tile.sums(build, address(6))
                initial = [build.fadd(total, vector) for total in initial]
            sums = of_tile.multiplied(build, lefts, address(3), args[5], initial, args[12])
            for out, total in zip(outs, sums, strict=True):
                of_tile.store(build, total, out)
            return context.get_dummy_value()

        return signature, generate

    return add_tile


class _Columns:
    """Instructions for lines of so many columns."""

    def __init__(self, count: int) -> None:
        self._floats, self._bits, self._stored = (ir.VectorType(kind, count) for kind in (_FP32, _INT32, _INT16))
        self._rounded, self._pairs = ir.VectorType(_Bf16(), count), ir.VectorType(_Bf16(), 2 * count)
        interleaved = [line * count + column for column in range(count) for line in (0, 1)]
        self._interleaved = ir.Constant(ir.VectorType(_INT32, 2 * count), interleaved)
        self._sixteen, self._first = (ir.Constant(self._bits, [number] * count) for number in (16, 0))
        self._instruction = f"llvm.x86.avx512bf16.dpbf16ps.{32 * count}"

    def sums(self, build: Any, address: Any) -> Any:
        """Load a line as fp32."""
        bits = build.shl(build.zext(self._line(build, address), self._bits), self._sixteen)
        return build.bitcast(bits, self._floats)

    def store(self, build: Any, sums: Any, address: Any) -> None:
        build.store(build.fptrunc(sums, self._rounded), build.bitcast(address, self._rounded.as_pointer())).align = 2

    def multiplied(self, build: Any, lefts: Any, right: Any, distance: Any, initial: Any, count: Any) -> Any:
        """Add the products of all pairs of lines to the initial sums."""
        kinds = [self._floats, self._pairs, self._pairs]
        add_pairs = get_or_insert_function(build.module, ir.FunctionType(self._floats, kinds), self._instruction)
        before, loop, after = build.block, build.append_basic_block(), build.append_basic_block()
        build.branch(loop)
        build.position_at_end(loop)
        k, sums = build.phi(_INT64), [build.phi(self._floats) for _ in lefts]
        one, two = ir.Constant(_INT64, 1), ir.Constant(_INT64, 2)
        lines = [self._line(build, build.gep(right, [build.mul(line, distance)])) for line in (k, build.add(k, one))]
        pairs = build.bitcast(build.shuffle_vector(*lines, self._interleaved), self._pairs)
        sums_after = [
            build.call(add_pairs, [total, self._repeated_pair(build, build.gep(left, [k])), pairs])
            for left, total in zip(lefts, sums, strict=True)
        ]
        following = build.add(k, two)
        build.cbranch(build.icmp_signed("<", following, count), loop, after)
        k.add_incoming(ir.Constant(_INT64, 0), before)
        k.add_incoming(following, loop)
        for total, first, then in zip(sums, initial, sums_after, strict=True):
            total.add_incoming(first, before)
            total.add_incoming(then, loop)
        build.position_at_end(after)
        return sums_after

    def _line(self, build: Any, address: Any) -> Any:
        line = build.load(build.bitcast(address, self._stored.as_pointer()))
        line.align = 2
        return line

    def _repeated_pair(self, build: Any, address: Any) -> Any:
        pair = build.load(build.bitcast(address, _INT32.as_pointer()))
        pair.align = 2
        undefined = ir.Constant(self._bits, ir.Undefined)
        first_lane = build.insert_element(undefined, pair, ir.Constant(_INT32, 0))
        return build.bitcast(build.shuffle_vector(first_lane, undefined, self._first), self._pairs)


def _smaller(build: Any, left: Any, right: Any) -> Any:
    return build.select(build.icmp_signed("<", left, right), left, right)


_add_tile, _add_narrow_tile = _tile(TILE_COLUMNS), _tile(_NARROW)


@njit(inline="always")
def _add_products(
    left: Any,
    left_start: Any,
    left_row: Any,
    right: Any,
    right_start: Any,
    columns: Any,
    vectors: Any,
    vector_start: Any,
    out: Any,
    out_start: Any,
    out_row: Any,
    rows: Any,
    count: Any,
) -> None:
    """Add the product of up to `_TILE_ROWS` rows and a matrix, `[count, columns]`, tile by tile, as `add_tile` does."""
    whole = columns - columns % TILE_COLUMNS
    for column in range(0, whole, TILE_COLUMNS):
        _add_tile(
            left,
            left_start,
            left_row,
            right,
            right_start + column,
            columns,
            vectors,
            vector_start + column,
            out,
            out_start + column,
            out_row,
            rows,
            count,
        )
    if whole < columns:
        _add_narrow_tile(
            left,
            left_start,
            left_row,
            right,
            right_start + whole,
            columns,
            vectors,
            vector_start + whole,
            out,
            out_start + whole,
            out_row,
            rows,
            count,
        )


@compiled(
    *(
        types.void(FLAT_BF16, COUNT, COUNTS, COUNTS, COUNTS, FLAT_BF16, COUNT, types.int16[:, :, ::1], vectors)
        for vectors in ((types.none, BF16) if HAS_BF16_PRODUCTS else ())
    )
)
def add_bf16_products(
    states: Any,
    states_row: Any,
    starts: Any,
    ends: Any,
    rows: Any,
    inputs: Any,
    inputs_row: Any,
    weights: Any,
    vectors: Any,
) -> None:
    """Add the product of each segment's inputs and its matrix to its states, and its vector if there are vectors.

    Shape:
        states, inputs: One token after the other, their first numbers `states_row` and `inputs_row` from each other.
    """
    _, count, columns = weights.shape
    for segment in range(len(starts)):
        row = rows[segment]
        for first in range(starts[segment], ends[segment], _TILE_ROWS):
            left, out, num_tokens = first * inputs_row, first * states_row, min(_TILE_ROWS, ends[segment] - first)
            right, vector = row * count * columns, row * columns
            _add_products(
                inputs,
                left,
                inputs_row,
                weights,
                right,
                columns,
                vectors,
                vector,
                states,
                out,
                states_row,
                num_tokens,
                count,
            )


@compiled(
    *(
        types.void(FLAT_BF16, COUNT, COUNTS, COUNTS, COUNTS, FLAT_BF16, COUNT, COUNT, _POOL, _POOL)
        for _ in range(HAS_BF16_PRODUCTS)
    )
)
def add_bf16_pairs(
    states: Any,
    states_row: Any,
    starts: Any,
    ends: Any,
    rows: Any,
    inputs: Any,
    inputs_row: Any,
    layer: Any,
    downs: Any,
    ups: Any,
) -> None:
    """Add the product of each segment's inputs and its two matrices; the numbers between these are rounded to bf16.

    Shape:
        states, inputs: As in `add_bf16_products`.
        downs: `[layers, rows, in, rank]`.
        ups: `[layers, rows, rank, out]`.
    """
    _, num_rows, count, rank = downs.shape
    columns = ups.shape[3]
    inner = np.empty(_TILE_ROWS * rank, np.int16)
    for segment in range(len(starts)):
        row = layer * num_rows + rows[segment]
        for first in range(starts[segment], ends[segment], _TILE_ROWS):
            left, out, num_tokens = first * inputs_row, first * states_row, min(_TILE_ROWS, ends[segment] - first)
            inner[:] = 0
            down, up = row * count * rank, row * rank * columns
            _add_products(inputs, left, inputs_row, downs, down, rank, None, 0, inner, 0, rank, num_tokens, count)
            _add_products(inner, 0, rank, ups, up, columns, None, 0, states, out, states_row, num_tokens, rank)

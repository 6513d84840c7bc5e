"""Products of segments in bf16 on processors that multiply two neighbouring numbers of it at once.

States are read and written as they are stored, and sums stay in fp32 until then: a product takes about two thirds of
the time of `segments.py`.

Shape:
    As in `segments.py`. Matrices have an even number of lines, and columns that fill tiles: `fit`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from torch import Tensor

from backends.kernels.compiling import BF16, COUNT, COUNTS, FLAT_BF16, compiled
from backends.kernels.tile import TILE_COLUMNS

MULTIPLIES_PAIRS = "+avx512bf16" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")
"""Whether loops are compiled for a processor with such instructions; elsewhere those of this file cannot be called."""
TILE_ROWS = 8
"""More of them would be left empty at the ends of short segments."""


class _Bf16(ir.types.Type):  # type: ignore[misc]  # llvmlite has no types
    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bf16)

    def __hash__(self) -> int:
        return hash(_Bf16)


_INT16, _INT32, _INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_SUMS, _BITS, _STORED = (ir.VectorType(kind, TILE_COLUMNS) for kind in (ir.FloatType(), _INT32, _INT16))
_ROUNDED, _PAIRS = ir.VectorType(_Bf16(), TILE_COLUMNS), ir.VectorType(_Bf16(), 2 * TILE_COLUMNS)
_IN_TURN = ir.Constant(
    ir.VectorType(_INT32, 2 * TILE_COLUMNS),
    [line * TILE_COLUMNS + column for column in range(TILE_COLUMNS) for line in (0, 1)],
)
_INSTRUCTION = f"llvm.x86.avx512bf16.dpbf16ps.{32 * TILE_COLUMNS}"


def fit(matrices: Tensor) -> bool:
    """Whether matrices, `[…, in, out]`, can be multiplied here."""
    *_, count, columns = matrices.shape
    return not count % 2 and not columns % TILE_COLUMNS


@intrinsic
def _add_tile(
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
    """Add the product of up to `TILE_ROWS` rows of `count` numbers, at least one row and two numbers.

    Each matrix lies in an array in bf16, from an offset on, with the same distance between all its rows. Rows that are
    missing are the last one again, which is written with the same values each time.

    Semantics:
        out[i, j] += Σ_k left[i, k] · right[k, j] + vector[j]
    """
    ints = (types.int64,) * 2
    signature = types.void(left, *ints, right, *ints, vectors, types.int64, out, *ints, *ints)

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        def address(at: int) -> Any:
            data = context.make_array(signature.args[at])(context, build, args[at]).data
            return build.gep(data, [args[at + 1]])

        last = build.sub(args[11], ir.Constant(_INT64, 1))
        numbers = [_smaller(build, ir.Constant(_INT64, row), last) for row in range(TILE_ROWS)]
        lefts, outs = (
            [build.gep(base, [build.mul(number, distance)]) for number in numbers]
            for base, distance in ((address(0), args[2]), (address(8), args[10]))
        )
        begun = [_as_sums(build, out) for out in outs]
        if signature.args[6] != types.none:
            vector = _as_sums(build, address(6))
            begun = [build.fadd(total, vector) for total in begun]
        sums = _multiplied(build, lefts, address(3), args[5], begun, args[12])
        for out, total in zip(outs, sums, strict=True):
            build.store(build.fptrunc(total, _ROUNDED), build.bitcast(out, _ROUNDED.as_pointer())).align = 2
        return context.get_dummy_value()

    return signature, generate


def _multiplied(build: Any, lefts: Any, right: Any, distance: Any, begun: Any, count: Any) -> Any:
    """Add the products of all pairs of lines to the sums that were begun."""
    add_pairs = get_or_insert_function(build.module, ir.FunctionType(_SUMS, [_SUMS, _PAIRS, _PAIRS]), _INSTRUCTION)
    before, loop, after = build.block, build.append_basic_block(), build.append_basic_block()
    build.branch(loop)
    build.position_at_end(loop)
    k, sums = build.phi(_INT64), [build.phi(_SUMS) for _ in lefts]
    one, two = ir.Constant(_INT64, 1), ir.Constant(_INT64, 2)
    lines = [_stored(build, build.gep(right, [build.mul(line, distance)])) for line in (k, build.add(k, one))]
    pairs = build.bitcast(build.shuffle_vector(*lines, _IN_TURN), _PAIRS)
    more = [
        build.call(add_pairs, [total, _repeated_pair(build, build.gep(left, [k])), pairs])
        for left, total in zip(lefts, sums, strict=True)
    ]
    following = build.add(k, two)
    build.cbranch(build.icmp_signed("<", following, count), loop, after)
    k.add_incoming(ir.Constant(_INT64, 0), before)
    k.add_incoming(following, loop)
    for total, first, then in zip(sums, begun, more, strict=True):
        total.add_incoming(first, before)
        total.add_incoming(then, loop)
    build.position_at_end(after)
    return more


def _smaller(build: Any, left: Any, right: Any) -> Any:
    return build.select(build.icmp_signed("<", left, right), left, right)


def _stored(build: Any, address: Any) -> Any:
    line = build.load(build.bitcast(address, _STORED.as_pointer()))
    line.align = 2
    return line


def _as_sums(build: Any, address: Any) -> Any:
    bits = build.shl(build.zext(_stored(build, address), _BITS), ir.Constant(_BITS, [16] * TILE_COLUMNS))
    return build.bitcast(bits, _SUMS)


def _repeated_pair(build: Any, address: Any) -> Any:
    pair = build.load(build.bitcast(address, _INT32.as_pointer()))
    pair.align = 2
    nothing = ir.Constant(_BITS, ir.Undefined)
    alone = build.insert_element(nothing, pair, ir.Constant(_INT32, 0))
    return build.bitcast(build.shuffle_vector(alone, nothing, ir.Constant(_BITS, [0] * TILE_COLUMNS)), _PAIRS)


@compiled(
    *(
        types.void(FLAT_BF16, COUNT, COUNTS, COUNTS, COUNTS, FLAT_BF16, COUNT, types.int16[:, :, ::1], vectors)
        for vectors in ((types.none, BF16) if MULTIPLIES_PAIRS else ())
    )
)
def add_products_of_pairs(
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
        for first in range(starts[segment], ends[segment], TILE_ROWS):
            num_tokens = min(TILE_ROWS, ends[segment] - first)
            for column in range(0, columns, TILE_COLUMNS):
                left, right = (inputs, first * inputs_row, inputs_row), (weights, row * count * columns + column)
                out = states, first * states_row + column, states_row
                _add_tile(*left, *right, columns, vectors, row * columns + column, *out, num_tokens, count)

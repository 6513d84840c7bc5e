"""Small products whose sums stay in the processor's registers: what a compiler's own vectors do not reach.

A tile is the part of a product that these registers hold: `TILE_ROWS` rows of `TILE_COLUMNS` columns.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

TILE_ROWS = 6
"""With it the sums, a line of the right matrix and a number of the left one fill the 16 registers of AVX2."""
TILE_COLUMNS = 16

_INT16, _INT32, _INT64, _FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_LINE, _BITS, _STORED = (ir.VectorType(kind, TILE_COLUMNS) for kind in (_FLOAT, _INT32, _INT16))
_FIRST = ir.Constant(_BITS, [0] * TILE_COLUMNS)
_NO_LINE = ir.Constant(_LINE, ir.Undefined)


@njit(inline="always")
def filled(count: Any, step: Any) -> Any:
    """Round up to a multiple."""
    return (count + step - 1) // step * step


@intrinsic
def multiply_tile(
    typing: Any,
    left: Any,
    left_start: Any,
    left_row: Any,
    right: Any,
    right_start: Any,
    right_row: Any,
    out: Any,
    out_start: Any,
    out_row: Any,
    count: Any,
) -> Any:
    """Multiply `TILE_ROWS` rows of `count` numbers by `count` lines of `TILE_COLUMNS`.

    Each matrix lies in an array of one dimension, from an offset on, with the same distance between all its rows. All
    are in fp32, but the right one may be in bf16. Nothing checks that they end where the arrays do.

    Semantics:
        out[i, j] = Σ_k left[i, k] · right[k, j] with at least one k
    """
    signature = types.void(left, *_START_AND_ROW, right, *_START_AND_ROW, out, *_START_AND_ROW, types.int64)

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        matrices = [context.make_array(kinds[at])(context, build, args[at]).data for at in (0, 3, 6)]
        rows_of_left = _rows(build, matrices[0], args[1], args[2])
        rows_of_out = _rows(build, matrices[2], args[7], args[8])
        right_base, right_row, count = build.gep(matrices[1], [args[4]]), args[5], args[9]
        multiply_add = get_or_insert_function(
            build.module, ir.FunctionType(_LINE, [_LINE] * 3), f"llvm.fmuladd.v{TILE_COLUMNS}f32"
        )

        before, loop, after = build.block, build.append_basic_block(), build.append_basic_block()
        build.branch(loop)
        build.position_at_end(loop)
        k = build.phi(_INT64)
        sums = [build.phi(_LINE) for _ in range(TILE_ROWS)]
        line = _line(build, build.gep(right_base, [build.mul(k, right_row)]), kinds[3].dtype)
        more = [
            build.call(multiply_add, [_repeated(build, build.load(build.gep(row, [k]))), line, total])
            for row, total in zip(rows_of_left, sums, strict=True)
        ]
        following = build.add(k, ir.Constant(_INT64, 1))
        build.cbranch(build.icmp_signed("<", following, count), loop, after)
        k.add_incoming(ir.Constant(_INT64, 0), before)
        k.add_incoming(following, loop)
        for total, sum_so_far in zip(sums, more, strict=True):
            total.add_incoming(ir.Constant(_LINE, [0.0] * TILE_COLUMNS), before)
            total.add_incoming(sum_so_far, loop)

        build.position_at_end(after)
        for row, total in zip(rows_of_out, more, strict=True):
            build.store(total, build.bitcast(row, _LINE.as_pointer())).align = 4
        return context.get_dummy_value()

    return signature, generate


_START_AND_ROW = types.int64, types.int64
"""Where a matrix begins in its array, and how far its rows are from each other."""


def _rows(build: Any, matrix: Any, start: Any, row: Any) -> list[Any]:
    offsets = (build.add(start, build.mul(row, ir.Constant(_INT64, index))) for index in range(TILE_ROWS))
    return [build.gep(matrix, [offset]) for offset in offsets]


def _line(build: Any, address: Any, kind: Any) -> Any:
    """Load a line, which may lie anywhere; bf16 becomes fp32."""
    stored = _LINE if kind == types.float32 else _STORED
    line = build.load(build.bitcast(address, stored.as_pointer()))
    line.align = kind.bitwidth // 8
    if kind == types.float32:
        return line
    return build.bitcast(build.shl(build.zext(line, _BITS), ir.Constant(_BITS, [16] * TILE_COLUMNS)), _LINE)


def _repeated(build: Any, number: Any) -> Any:
    return build.shuffle_vector(build.insert_element(_NO_LINE, number, ir.Constant(_INT32, 0)), _NO_LINE, _FIRST)

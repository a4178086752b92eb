"""Numbers read byte by byte become one wide load where their bytes lie side by side."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import DType, Ops, UOp, const, dtypes, expand, reshape, shrink
from tests.compiler.kernels import VECTORS, data, inputs, only, run_ast, run_on
from tests.compiler.passes import after


def words(dtype: DType, rows: int = 1, count: int = 64) -> UOp:
    """Little-endian numbers of `count` rows side by side: [count] from bytes [rows, count, size]."""
    size = dtype.size_bytes
    x = data(0, rows, count, size, dtype=dtypes.uint8)
    parts = [reshape(shrink(x, ((0, rows), (0, count), (n, n + 1))), (rows, count)).cast(dtype) for n in range(size)]
    total = parts[0]
    for n, part in enumerate(parts[1:], 1):
        by = expand(reshape(const(dtype, 8 * n), (1, 1)), (rows, count))
        total = total.alu(Ops.OR, part.alu(Ops.SHL, by))
    return total


def count(ast: UOp, op: object) -> int:
    return sum(node.op is op for node in ast.toposort())


@pytest.mark.parametrize("dtype", [dtypes.uint16, dtypes.uint32])
def test_nothing_but_a_load_is_left(dtype: DType) -> None:
    ast = after("words", only(words(dtype, 2)), "vectorize i0 16", VECTORS)
    (load,) = [node for node in ast.toposort() if node.op is Ops.LOAD]
    assert load.dtype is dtypes.uint8.vec(16 * dtype.size_bytes)
    (whole,) = [node for node in ast.toposort() if node.op is Ops.BITCAST]
    assert whole.dtype is dtype.vec(16)
    assert count(ast, Ops.OR) == count(ast, Ops.SHL) == count(ast, Ops.SHUFFLE) == 0


@pytest.mark.parametrize("schedule", ["vectorize i0 16", "vectorize i0 8; unroll i0 2", "unroll i0 2", ""])
@pytest.mark.parametrize("dtype", [dtypes.uint16, dtypes.uint32, dtypes.uint64])
@pytest.mark.parametrize("sizes", [(1, 64), (3, 37), (2, 9)])
def test_values(dtype: DType, schedule: str, sizes: tuple[int, int]) -> None:
    ast = only(words(dtype, *sizes))
    actions = parse_schedule(schedule)
    arrays = inputs(ast)
    arrays[1] = np.random.default_rng(2).integers(0, 256, arrays[1].size).astype(np.uint8)
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


def test_other_sums_of_bits_stay() -> None:
    """Bytes in the wrong order, or one of them missing."""
    x = data(0, 64, 2, dtype=dtypes.uint8)
    low, high = (reshape(shrink(x, ((0, 64), (n, n + 1))), (64,)).cast(dtypes.uint16) for n in (0, 1))
    by = expand(reshape(const(dtypes.uint16, 8), (1,)), (64,))
    for value in (high.alu(Ops.OR, low.alu(Ops.SHL, by)), low.alu(Ops.OR, high)):
        assert count(after("words", only(value), "vectorize i0 16", VECTORS), Ops.OR) == 1

"""Numbers read byte by byte become one wide load where their bytes lie side by side; halves are woven."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import DType, Ops, UOp, const, dtypes, expand, iota, reshape, shrink
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
    ast = after("combine_loads", only(words(dtype, 2)), "vectorize i0 16", VECTORS)
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
        assert count(after("combine_loads", only(value), "vectorize i0 16", VECTORS), Ops.OR) == 1


def filled(dtype: DType, value: int, size: int = 64) -> UOp:
    return expand(reshape(const(dtype, value), (1,)), (size,))


def keys(dtype: DType = dtypes.int64, of: DType = dtypes.int32, size: int = 64) -> UOp:
    """What an argmax compares: values above, places below."""
    above = data(0, size, dtype=of).cast(dtype).alu(Ops.XOR, filled(dtype, -1 if dtype.min else 3, size))
    return above.alu(Ops.SHL, filled(dtype, 32, size)).alu(Ops.OR, iota(size).cast(dtype))


@pytest.mark.parametrize("of", [dtypes.int32, dtypes.uint32, dtypes.int8])
def test_halves_are_woven(of: DType) -> None:
    ast = after("combine_loads", only(keys(of=of)), "vectorize i0 16", VECTORS)
    (weave,) = [node for node in ast.toposort() if node.op is Ops.SHUFFLE]
    assert weave.dtype is dtypes.int32.vec(32)
    assert weave.arg == tuple(lane + half for lane in range(16) for half in (0, 16))
    assert count(ast, Ops.OR) == count(ast, Ops.SHL) == 0
    assert all(node.dtype is dtypes.int32.vec(16) for node in ast.toposort() if node.op is Ops.XOR)


@pytest.mark.parametrize("schedule", ["vectorize i0 16", "vectorize i0 8; unroll i0 2", "vectorize i0 2", ""])
@pytest.mark.parametrize("of", [dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint8])
@pytest.mark.parametrize("dtype", [dtypes.int64, dtypes.uint64])
@pytest.mark.parametrize("size", [64, 37])
def test_values_of_halves(dtype: DType, of: DType, schedule: str, size: int) -> None:
    ast = only(keys(dtype, of, size))
    arrays = inputs(ast)
    bits = np.random.default_rng(3).integers(0, 256, arrays[1].nbytes).astype(np.uint8)
    arrays[1] = bits.view(arrays[1].dtype)
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))


def test_halves_of_which_more_is_needed_stay() -> None:
    """A lower half that may be longer; an upper one that comes from above, or from a float; another shift."""
    wide, thirty_two = data(0, 64, dtype=dtypes.int64), filled(dtypes.int64, 32)
    low = iota(64)
    for above, below, by in (
        (low, wide, 32),
        (wide.alu(Ops.SHR, thirty_two), low, 32),
        (data(0, 64).cast(dtypes.int64), low, 32),
        (wide, low, 31),
    ):
        value = above.alu(Ops.SHL, filled(dtypes.int64, by)).alu(Ops.OR, below)
        assert count(after("combine_loads", only(value), "vectorize i0 16", VECTORS), Ops.OR) == 1

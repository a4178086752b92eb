"""Bytes moved to the other sign: exact values, sums that are kept, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill.compiler import apply_actions, merge_loops, parse_schedule
from kernmill.ir import CompileError, DType, Ops, UOp, dtypes
from tests.compiler.kernels import data, inputs, matmul, only, run_ast, run_on

I8, U8 = dtypes.int8, dtypes.uint8


def product(rows: int, inner: int, columns: int, pair: tuple[DType, DType] = (I8, I8)) -> UOp:
    left, right = data(0, rows, inner, dtype=pair[0]), data(1, inner, columns, dtype=pair[1])
    return merge_loops(only(matmul(left.cast(dtypes.int32), right.cast(dtypes.int32))))


@pytest.mark.parametrize("pair", [(I8, I8), (U8, U8), (I8, U8), (U8, I8)])
@pytest.mark.parametrize("size", [(5, 7, 3), (12, 64, 40), (25, 30, 17), (2, 9, 33)])
@pytest.mark.parametrize(
    "schedule",
    [
        "bias 2 i0",
        "bias 1 i1",
        "bias 2 i0; unroll k0 4; stage 2 k0 i1 k0.u; vectorize i1'' 64; vectorize i1 16; unroll i0 2",
        "bias 2 i0; vectorize k0' 16; vectorize i1 16; unroll k0 4; unroll i0 3",
    ],
)
def test_values_are_exact(pair: tuple[DType, DType], size: tuple[int, int, int], schedule: str) -> None:
    ast = product(*size, pair)
    arrays = inputs(ast)
    for number, array in enumerate(arrays[1:], 1):
        limits, rng = np.iinfo(array.dtype), np.random.default_rng(number)
        arrays[number] = rng.integers(limits.min, limits.max + 1, array.size).astype(array.dtype)
        arrays[number][::7], arrays[number][::11] = limits.min, limits.max
    expected = run_ast(ast, arrays)
    for device in ("LLVM",) if "vectorize" in schedule else ("PYTHON", "LLVM"):
        np.testing.assert_array_equal(run_on(device, ast, arrays, parse_schedule(schedule)), expected)


def test_sums_that_are_taken_off_are_kept_over_the_rows() -> None:
    done = apply_actions(product(12, 64, 40), parse_schedule("bias 2 i0"))
    (kept,) = [n for n in done.toposort() if n.op is Ops.LOCAL]
    assert kept.arg == ("bias2", 12)
    assert not kept.src


def test_what_is_no_product_of_bytes() -> None:
    floats = merge_loops(only(matmul(data(0, 8, 16), data(1, 16, 32))))
    with pytest.raises(CompileError, match="buffer 2 is not the byte operand of an int32 product"):
        apply_actions(floats, parse_schedule("bias 2 i0"))
    with pytest.raises(CompileError, match="the kernel must have exactly one reduction"):
        apply_actions(product(8, 16, 32), parse_schedule("bias 2 i0; bias 1 i1"))
    with pytest.raises(CompileError, match="bias 2 i1 does not fit"):
        apply_actions(product(8, 16, 32), parse_schedule("bias 2 i1"))

"""Choices between numbers by the bits of a code become a lookup in a register."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import Ops, UOp, const, dtypes, elementwise, expand, reshape
from tests.compiler.kernels import VECTORS, data, inputs, only, run_ast, run_on
from tests.compiler.passes import after

NUMBERS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
TARGET = replace(VECTORS, table_lanes=64)


def everywhere(value: int, like: UOp, dtype: object = dtypes.uint8) -> UOp:
    return expand(reshape(const(dtype, value), (1,)), like.shape)  # type: ignore[arg-type]


def chosen(codes: UOp, numbers: tuple[int, ...] = NUMBERS) -> UOp:
    """numbers[code], one choice a bit."""
    level = [everywhere(number, codes, dtypes.int8) for number in numbers]
    bit = 1
    while len(level) > 1:
        is_set = (codes & everywhere(bit, codes)).alu(Ops.NE, everywhere(0, codes))
        level = [is_set.where(high, low) for low, high in zip(level[::2], level[1::2], strict=True)]
        bit *= 2
    return level[0]


def low(count: int = 64) -> UOp:
    x = data(0, count, dtype=dtypes.uint8)
    return x & everywhere(15, x)


def tables(ast: UOp) -> list[UOp]:
    return [node for node in ast.toposort() if node.op is Ops.TABLE]


def test_one_lookup_is_left() -> None:
    ast = after("find_tables", only(chosen(low())), "vectorize i0 32", TARGET)
    (table,) = tables(ast)
    assert (table.arg, table.dtype) == (NUMBERS, dtypes.int8.vec(32))
    assert not any(node.op in (Ops.WHERE, Ops.NE) for node in ast.toposort())


def test_what_follows_is_looked_up_as_well() -> None:
    value = chosen(low()).bitcast(dtypes.uint8)
    ast = after("find_tables", only(value ^ everywhere(128, value)), "vectorize i0 16", TARGET)
    assert [table.arg for table in tables(ast)] == [tuple(number + 128 for number in NUMBERS)]


@pytest.mark.parametrize("schedule", ["", "vectorize i0 8"])
def test_without_a_register_choices_stay(schedule: str) -> None:
    assert not tables(after("find_tables", only(chosen(low())), schedule, TARGET))
    assert not tables(after("find_tables", only(chosen(low())), "vectorize i0 32", VECTORS))


def test_other_bytes_stay() -> None:
    """All of a byte, two of them, and a step or two."""
    x, y = data(0, 64, dtype=dtypes.uint8), low()
    both = elementwise(Ops.ADD, chosen(y), data(1, 64, dtype=dtypes.int8))
    for value in (chosen(x >> everywhere(3, x)), (y ^ everywhere(8, y)) + everywhere(1, y)):
        assert not tables(after("find_tables", only(value), "vectorize i0 16", TARGET))
    assert len(tables(after("find_tables", only(both), "vectorize i0 16", TARGET))) == 1


@pytest.mark.parametrize("schedule", ["vectorize i0 16", "vectorize i0 32", "vectorize i0 64", "unroll i0 4"])
@pytest.mark.parametrize("count", [64, 100, 7])
def test_values(schedule: str, count: int) -> None:
    x = data(0, count, dtype=dtypes.uint8)
    ast = only(chosen(x >> everywhere(4, x)))
    arrays = inputs(ast)
    arrays[1] = np.random.default_rng(2).integers(0, 256, arrays[1].size).astype(np.uint8)
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))


def test_a_condition_is_no_table() -> None:
    """It was made of bools, which no instruction looks up."""
    codes = low(4096)
    is_in = (
        (codes < 3) | codes.eq(everywhere(7, codes)) | (everywhere(12, codes) < codes) | codes.eq(everywhere(9, codes))
    )
    ast = only(is_in.where(everywhere(1, codes), everywhere(0, codes)).eq(everywhere(1, codes)))
    arrays = inputs(ast)
    arrays[1][:] = np.random.default_rng(1).integers(0, 256, 4096)
    assert np.array_equal(run_on("LLVM", ast, arrays), run_ast(ast, arrays))

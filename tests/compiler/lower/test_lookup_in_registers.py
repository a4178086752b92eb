"""Choices between numbers by the bits of a code become a lookup in a register."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np
import pytest

from kernmill.compiler import PIPELINE, parse_schedule
from kernmill.ir import DType, Ops, UOp, const, dtypes, elementwise, expand, reshape, shrink, take
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
    ast = after("lookup_in_registers", only(chosen(low())), "vectorize i0 32", TARGET)
    (table,) = tables(ast)
    assert (table.arg, table.dtype) == (NUMBERS, dtypes.int8.vec(32))
    assert not any(node.op in (Ops.WHERE, Ops.NE) for node in ast.toposort())


def test_what_follows_is_looked_up_as_well() -> None:
    value = chosen(low()).bitcast(dtypes.uint8)
    ast = after("lookup_in_registers", only(value ^ everywhere(128, value)), "vectorize i0 16", TARGET)
    assert [table.arg for table in tables(ast)] == [tuple(number + 128 for number in NUMBERS)]


@pytest.mark.parametrize("schedule", ["", "vectorize i0 8"])
def test_without_a_register_choices_stay(schedule: str) -> None:
    assert not tables(after("lookup_in_registers", only(chosen(low())), schedule, TARGET))
    assert not tables(after("lookup_in_registers", only(chosen(low())), "vectorize i0 32", VECTORS))


def test_other_bytes_stay() -> None:
    """All of a byte, two of them, and a step or two."""
    x, y = data(0, 64, dtype=dtypes.uint8), low()
    both = elementwise(Ops.ADD, chosen(y), data(1, 64, dtype=dtypes.int8))
    for value in (chosen(x >> everywhere(3, x)), (y ^ everywhere(8, y)) + everywhere(1, y)):
        assert not tables(after("lookup_in_registers", only(value), "vectorize i0 16", TARGET))
    assert len(tables(after("lookup_in_registers", only(both), "vectorize i0 16", TARGET))) == 1


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


def test_bytes_that_are_read_as_words_are_codes_no_more() -> None:
    """Four codes of 64 lanes are one word of 16: LLVM refused the lookup of 64 places in 16 lanes."""
    codes = data(0, 64, 4, dtype=dtypes.uint8) & 15
    parts = [reshape(shrink(codes, ((0, 64), (n, n + 1))), (64,)).cast(dtypes.uint32) << 8 * n for n in range(4)]
    words = reduce(or_, parts)
    ast = only((((words >> 4) ^ (words >> 13)) * 7 + 3).cast(dtypes.uint8))
    assert not tables(after("lookup_in_registers", ast, "vectorize i0 16", TARGET))
    arrays = inputs(ast)
    arrays[1][:] = np.random.default_rng(2).integers(0, 256, 256)
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays), run_ast(ast, arrays))


HELD = replace(TARGET, table_bytes=128)


def gathered(size: int, count: int = 64, most: int = 255, dtype: DType = dtypes.uint8, less: int = 0) -> UOp:
    places = data(1, count, dtype=dtypes.uint8)
    places = (places & everywhere(most, places)).cast(dtypes.int32)
    return only(
        take(data(0, size, dtype=dtype), places - expand(reshape(const(dtypes.int32, less), (1,)), (count,)), 0)
    )


def test_a_table_in_memory_is_held_in_registers() -> None:
    ast = after("lookup_in_registers", gathered(256), "vectorize i0 64", HELD)
    assert len(tables(ast)) == 2
    assert all(node.src[1].dtype.lanes == 1 for node in ast.toposort() if node.op is Ops.INDEX)
    assert len(tables(after("lookup_in_registers", gathered(256, dtype=dtypes.int8), "vectorize i0 64", HELD))) == 2
    assert not tables(after("lookup_in_registers", gathered(256), "vectorize i0 64", TARGET))


def test_no_memory_around_a_table_is_read() -> None:
    """A table that ends inside of registers, of which an index may be too large, or that begins before its memory."""
    assert len(tables(after("lookup_in_registers", gathered(128, most=127), "vectorize i0 64", HELD))) == 1
    for ast in (gathered(127, most=63), gathered(255), gathered(128, most=128), gathered(512, less=1)):
        assert not tables(after("lookup_in_registers", ast, "vectorize i0 64", HELD))


def test_neighbours_behind_a_byte_are_no_gather() -> None:
    """One load of 64 bytes, whose place is one byte: its lanes were not asked for."""
    (step,) = [step for step in PIPELINE if step.name == "lookup_in_registers"]
    byte, memory = (UOp(Ops.PARAM, dtypes.uint8, (), (slot, 512)) for slot in (0, 1))
    for lanes in (1, 64):
        kind = dtypes.uint8.vec(lanes)
        places = UOp(Ops.LOAD, kind, (UOp(Ops.INDEX, kind, (byte, const(dtypes.index, 0))),))
        index = UOp(Ops.INDEX, dtypes.uint8.vec(64), (memory, places.cast(dtypes.index)))
        assert len(tables(step.run(UOp(Ops.LOAD, index.dtype, (index,)), HELD))) == (2 if lanes == 64 else 0)


def test_places_of_several_bytes_stay() -> None:
    """Places made of two bytes, or of a byte more than once."""
    places = data(1, 64, dtype=dtypes.uint8).cast(dtypes.int32)
    for more in (places, data(2, 64, dtype=dtypes.uint8).cast(dtypes.int32)):
        ast = only(take(data(0, 512, dtype=dtypes.uint8), places + more, 0))
        assert not tables(after("lookup_in_registers", ast, "vectorize i0 64", HELD))


@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.uint16])
def test_other_gathers_stay(dtype: DType) -> None:
    """TABLE gives whole numbers of a byte: a table of bools was looked up as one."""
    assert not tables(after("lookup_in_registers", gathered(256, dtype=dtype), "vectorize i0 64", HELD))


@pytest.mark.parametrize("schedule", ["vectorize i0 64", "vectorize i0 32", "vectorize i0 16"])
@pytest.mark.parametrize("most", [15, 63, 127, 255])
def test_values_of_a_table_in_memory(schedule: str, most: int) -> None:
    ast = gathered(256, 128, most)
    arrays = inputs(ast)
    rng = np.random.default_rng(3)
    arrays[1:] = [rng.integers(0, 256, array.size).astype(np.uint8) for array in arrays[1:]]
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))

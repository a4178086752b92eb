"""Entries of a table are read lane by lane where their numbers lie in memory, and gathered elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import DType, Ops, UOp, const, dtypes, elementwise, expand, reshape, shrink, take
from tests.compiler.kernels import VECTORS, data, inputs, only, run_ast, run_on
from tests.compiler.passes import after

TABLE = data(0, 256, dtype=dtypes.uint32)


def same(x: UOp, value: int) -> UOp:
    return expand(reshape(const(x.dtype, value), (1,) * len(x.shape)), x.shape)


def numbers(rows: int, count: int, step: int = 4) -> UOp:
    """[rows, count]: one byte of each `step`, as numbers of entries."""
    x = data(1, rows, count, step, dtype=dtypes.uint8)
    return reshape(shrink(x, ((0, rows), (0, count), (0, 1))), (rows, count)).cast(dtypes.int32)


def gathers(ast: UOp) -> int:
    return sum(n.op is Ops.LOAD and n.src[0].src[1].dtype.lanes > 1 for n in ast.toposort())


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_number_in_memory_goes_to_an_address(step: int) -> None:
    kernel = only(take(TABLE, numbers(1, 64, step), 0))
    assert gathers(after("combine_loads", kernel, "vectorize i0 16", VECTORS)) == 1
    ast = after("scalarize_gathers", kernel, "vectorize i0 16", VECTORS)
    assert gathers(ast) == 0
    (lanes,) = [n for n in ast.toposort() if n.op is Ops.LANES]
    assert [n.op for n in lanes.src] == [Ops.LOAD] * 16


def test_a_number_of_several_bytes_is_a_part_of_one_load() -> None:
    x = data(1, 64, 2, dtype=dtypes.uint8)
    low, high = (reshape(shrink(x, ((0, 64), (n, n + 1))), (64,)).cast(dtypes.uint16) for n in (0, 1))
    whole = elementwise(Ops.OR, low, elementwise(Ops.SHL, high, same(high, 8)))
    table = data(0, 65536, dtype=dtypes.uint32)
    ast = after("scalarize_gathers", only(take(table, whole.cast(dtypes.int32), 0)), "vectorize i0 16", VECTORS)
    assert gathers(ast) == 0
    assert {n.src[0].dtype.lanes for n in ast.toposort() if n.op is Ops.BITCAST} == {2}


def test_numbers_that_take_many_steps_are_gathered() -> None:
    index = numbers(1, 64)
    for value in (3, 5, 7):
        index = elementwise(Ops.XOR, index, same(index, value))
        index = elementwise(Ops.MOD, elementwise(Ops.MUL, index, same(index, value)), same(index, 256))
    assert gathers(after("scalarize_gathers", only(take(TABLE, index, 0)), "vectorize i0 16", VECTORS)) == 1


def test_places_that_are_no_numbers_in_memory_stay() -> None:
    x = shrink(reshape(data(0, 64 * 256), (64, 256)), ((0, 64), (3, 4)))
    kernel = only(elementwise(Ops.NEG, x))
    assert [
        gathers(after(name, kernel, "vectorize i0 16", VECTORS)) for name in ("combine_loads", "scalarize_gathers")
    ] == [
        1,
        1,
    ]


@pytest.mark.parametrize("step", [5, 9, 100])
def test_numbers_that_are_gathered_themselves_stay_in_a_vector(step: int) -> None:
    """They were read by a vector of places as if it were one: what came out did not compile."""
    kernel = only(take(TABLE, numbers(1, 64, step), 0))
    assert gathers(after("scalarize_gathers", kernel, "vectorize i0 16", VECTORS)) == 2


def test_gathers_stay_where_they_are_fast() -> None:
    kernel = only(take(TABLE, numbers(1, 64), 0))
    assert gathers(after("scalarize_gathers", kernel, "vectorize i0 16", replace(VECTORS, has_gathers=True))) == 1


def test_what_has_a_gate_or_no_vectors_stays() -> None:
    kernel = only(take(TABLE, numbers(1, 60), 0))
    assert gathers(after("scalarize_gathers", kernel, "vectorize i0 16", VECTORS)) == 1
    assert after("scalarize_gathers", kernel, "", replace(VECTORS, vector_bytes=0))


@pytest.mark.parametrize("schedule", ["vectorize i0 16", "vectorize i0 8", "unroll i0 2", ""])
@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.float32, dtypes.uint64])
@pytest.mark.parametrize("step", [1, 4, 5, 9])
def test_values(schedule: str, dtype: DType, step: int) -> None:
    for count in (64, 37, 3):
        ast = only(take(data(0, 256, dtype=dtype), numbers(1, count, step), 0))
        arrays = inputs(ast)
        arrays[2] = np.random.default_rng(2).integers(0, 256, arrays[2].size).astype(np.uint8)
        got = run_on("LLVM", ast, arrays, parse_schedule(schedule))
        np.testing.assert_array_equal(got, run_ast(ast, arrays))

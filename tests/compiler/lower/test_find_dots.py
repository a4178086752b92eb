"""Sums of four int8 products as one instruction: found, undone packing, pairs of signs, exact values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import DType, Ops, UOp, dtypes, permute, reduce_axes
from kernmill.runtime import get_device
from tests.compiler.kernels import VECTORS, data, inputs, matmul, only, run_ast, run_on
from tests.compiler.passes import after

VNNI = replace(VECTORS, dots=frozenset({(dtypes.uint8, dtypes.int8)}))
PACKED = "vectorize i1 16; unroll i1 2; unroll i0 2; unroll k0 4; order i1 i0; stage 2 k0 i1.u i1.v k0.u"
I8, U8 = dtypes.int8, dtypes.uint8


def product(rows: int = 8, inner: int = 64, columns: int = 64, pair: tuple[DType, DType] = (I8, I8)) -> UOp:
    """The usual matrix product of bytes: int32 sums."""
    left, right = data(0, rows, inner, dtype=pair[0]), data(1, inner, columns, dtype=pair[1])
    return only(matmul(left.cast(dtypes.int32), right.cast(dtypes.int32)))


def count(ast: UOp, op: object) -> int:
    return sum(node.op is op for node in ast.toposort())


def same(ast: UOp, schedule: str) -> None:
    """Exact, with the extreme values of every type among the data."""
    arrays = inputs(ast)
    for number, array in enumerate(arrays[1:], 1):
        limits = np.iinfo(array.dtype)
        arrays[number] = (
            np.random.default_rng(number).integers(limits.min, limits.max + 1, array.size).astype(array.dtype)
        )
        arrays[number][::7], arrays[number][::11] = limits.min, limits.max
    np.testing.assert_array_equal(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))


def test_packing_leaves_nothing_in_the_loop() -> None:
    """What is woven into the panel, picked out and woven again is one load."""
    ast = after("find_dots", product(pair=(U8, I8)), PACKED, VNNI)
    dots = [node for node in ast.toposort() if node.op is Ops.DOT]
    assert len(dots) == 4
    assert {node.src[1].op for node in dots} == {Ops.LOAD}
    assert {node.src[0].src[0].dtype for node in dots} == {U8.vec(4)}
    assert count(ast, Ops.MUL) == count(after("find_dots", product(pair=(U8, I8)), PACKED, VNNI), Ops.MUL)


def test_a_sum_of_dots_is_a_chain() -> None:
    ast = after("lower_reduces", product(pair=(U8, I8)), PACKED, VNNI)
    assert all(node.src[2].op is Ops.CARRY for node in ast.toposort() if node.op is Ops.DOT)


def test_signed_pairs_share_the_correction() -> None:
    """Sums of 128*b do not change with the rows: one for each vector of columns, in loops of their own."""
    ast = after("find_dots", product(), PACKED, VNNI)
    sums = [node for node in ast.toposort() if node.op is Ops.REDUCE]
    corrections = [node for node in sums if not any(r.arg[0] == "i0" for r in node.ranges)]
    assert len(sums) == 2 * 2 + 2
    assert len(corrections) == 2
    assert len({node.src[-1] for node in corrections}) == 1


def test_a_target_without_it_gets_the_plain_loop() -> None:
    assert count(after("find_dots", product(), PACKED), Ops.DOT) == 0
    narrow = replace(VNNI, vector_bytes=32)
    assert count(after("find_dots", product(), PACKED, narrow), Ops.DOT) == 0


def test_other_sums_stay() -> None:
    wide = only(
        matmul(data(0, 8, 64, dtype=dtypes.int16).cast(dtypes.int32), data(1, 64, 64, dtype=I8).cast(dtypes.int32))
    )
    floats = only(matmul(data(0, 8, 64), data(1, 64, 64)))
    for ast in (wide, floats):
        assert count(after("find_dots", ast, PACKED, VNNI), Ops.DOT) == 0


def test_terms_that_are_no_multiple_of_four() -> None:
    """Named regression: the copy has no gate, so that no product of a last four was taken for 0 outside."""
    ast = after("find_dots", product(inner=62), PACKED, VNNI)
    assert count(ast, Ops.DOT) > 0
    same(product(inner=62), PACKED)


def test_what_is_left_over_is_multiplied() -> None:
    ast = after("find_dots", product(pair=(U8, I8)), "vectorize i1 16; unroll k0 2", VNNI)
    assert count(ast, Ops.DOT) == 0
    ast = after("find_dots", product(inner=36, pair=(U8, I8)), "vectorize i1 16; unroll k0 6", VNNI)
    (node,) = [n for n in ast.toposort() if n.op is Ops.REDUCE]
    assert [s.op for s in node.src[:3]] == [Ops.DOT, Ops.ADD, Ops.ADD] or node.src[0].op is Ops.DOT


@pytest.mark.parametrize("pair", [(I8, I8), (U8, I8), (I8, U8), (U8, U8)])
@pytest.mark.parametrize(
    "schedule",
    [
        PACKED,
        PACKED.replace("16", "8"),
        PACKED.replace("16", "4"),
        PACKED.replace("16", "2"),
        "vectorize i1 16; unroll k0 4",
        "vectorize i1 16; unroll i0 4; unroll k0 8",
        "vectorize k0 16; unroll k0 4",
        "vectorize i0 8; unroll k0 4",
    ],
)
def test_values_are_exact(pair: tuple[DType, DType], schedule: str) -> None:
    same(product(pair=pair), schedule)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 64, 64), (8, 61, 64), (8, 64, 37), (5, 7, 35)])
def test_tails(rows: int, inner: int, columns: int) -> None:
    same(product(rows, inner, columns), PACKED)
    same(product(rows, inner, columns), "vectorize i1 16; unroll i0 2; unroll k0 4")


@pytest.mark.parametrize(
    "schedule", [PACKED, "vectorize i1 16; unroll i0 4; unroll k0 4", "vectorize k0 16; unroll k0 4"]
)
def test_operands_by_columns(schedule: str) -> None:
    left, right = data(0, 64, 32, dtype=I8).cast(dtypes.int32), data(1, 48, 64, dtype=I8).cast(dtypes.int32)
    same(only(matmul(permute(left, (1, 0)), permute(right, (1, 0)))), schedule)


def byte_sums(dtype: DType, inner: int = 256) -> UOp:
    """The sum of each row of bytes, as int32."""
    return only(reduce_axes(data(0, 5, inner, dtype=dtype).cast(dtypes.int32), Ops.ADD, (1,)))


@pytest.mark.parametrize("dtype", [I8, U8])
def test_bytes_alone_are_added_by_fours(dtype: DType) -> None:
    """Once the sums of rows that int8 products want took 16 bytes a step; each part of a kernel makes them anew, so
    that two threads were slower than torch's."""
    ast = after("find_dots", byte_sums(dtype), "unroll k0 4; vectorize k0 16", VNNI)
    (dot,) = [node for node in ast.toposort() if node.op is Ops.DOT]
    assert sum(s.op is Ops.LOAD for s in dot.src) == 1
    assert count(after("find_dots", byte_sums(dtype), "vectorize k0 16; unroll k0 4", VNNI), Ops.DOT) == 0  # far apart
    for inner in (256, 250, 61):
        same(byte_sums(dtype, inner), "unroll k0 4; vectorize k0 16")
        same(byte_sums(dtype, inner), "vectorize k0 16; unroll k0 4")


def test_the_host_uses_it() -> None:
    target = get_device("LLVM").target
    if not target.dots:
        pytest.skip("this CPU has no dot products of bytes")
    packed = PACKED.replace("16", str(target.lanes(dtypes.int32)))
    assert count(after("find_dots", product(), packed, target), Ops.DOT) > 0


# --- pairs of bfloat16
BF16 = dtypes.bfloat16
PAIRS = replace(VECTORS, dots=frozenset({(BF16, BF16)}))
WORDS = "vectorize i1 16; unroll i1 2; unroll i0 2; unroll k0 2; order i1 i0; stage 2 k0 i1.u i1.v k0.u"


def pairs(rows: int = 8, inner: int = 64, columns: int = 64) -> UOp:
    left, right = data(0, rows, inner, dtype=BF16), data(1, inner, columns, dtype=BF16)
    return only(matmul(left.cast(dtypes.float32), right.cast(dtypes.float32)))


def test_pairs_are_words() -> None:
    ast = after("find_dots", pairs(), WORDS, PAIRS)
    dots = [node for node in ast.toposort() if node.op is Ops.DOT]
    assert len(dots) == 4
    assert {node.dtype for node in dots} == {dtypes.float32.vec(16)}
    assert {node.src[1].op for node in dots} == {Ops.LOAD}
    assert {node.src[0].src[0].dtype for node in dots} == {BF16.vec(2)}
    assert count(after("find_dots", pairs(), WORDS, VNNI), Ops.DOT) == 0
    assert count(after("find_dots", product(pair=(U8, I8)), PACKED, PAIRS), Ops.DOT) == 0


def test_pairs_are_woven_in_registers_unless_they_come_from_memory() -> None:
    """What waits for memory was slower with shuffles between loads and products."""
    schedule = "vectorize i1 16; unroll i0 2; unroll k0 2"
    assert count(after("find_dots", pairs(), schedule, PAIRS), Ops.DOT) == 2
    assert count(after("find_dots", pairs(), schedule, replace(PAIRS, l2_bytes=1 << 10)), Ops.DOT) == 0


def test_two_woven_operands_are_not_worth_it() -> None:
    one = data(0, 5, 256, dtype=BF16).cast(dtypes.float32)
    squares = only(reduce_axes(one * one, Ops.ADD, (1,)))
    assert count(after("find_dots", squares, "vectorize k0 16; unroll k0 2", PAIRS), Ops.DOT) == 0
    assert count(after("find_dots", squares, "unroll k0 2; vectorize k0 16", PAIRS), Ops.DOT) == 1
    sums = only(reduce_axes(one, Ops.ADD, (1,)))
    assert count(after("find_dots", sums, "unroll k0 2; vectorize k0 16", PAIRS), Ops.DOT) == 0


def test_pairs_behind_the_last_term_are_not_multiplied() -> None:
    """A product of 0 with what lies there may be nan."""
    assert count(after("find_dots", pairs(inner=63), WORDS, PAIRS), Ops.DOT) == 0


def test_the_op_by_itself_adds_pairs() -> None:
    if (BF16, BF16) not in get_device("LLVM").target.dots:
        pytest.skip("this CPU has no dot product instruction for bfloat16 that is worth it")
    ast = pairs(8, 62, 70)
    arrays = inputs(ast)
    for schedule in (WORDS, "vectorize i1 8; unroll k0 2", "vectorize i1 4; unroll i0 4; unroll k0 2"):
        bits = [arrays[0], *((a.view(np.uint32) >> 16).astype(np.uint16) for a in arrays[1:])]
        wide = [arrays[0], *((b.astype(np.uint32) << 16).view(np.float32) for b in bits[1:])]
        got = run_on("LLVM", ast, bits, parse_schedule(schedule))
        np.testing.assert_allclose(got, run_ast(ast, wide), rtol=0, atol=1e-4)

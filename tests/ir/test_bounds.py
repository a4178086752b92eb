"""Intervals: every value an op can give, over all values of small intervals, lies in what `bounds` says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kernmill.ir import (
    AxisKind,
    DType,
    Op,
    Ops,
    UOp,
    const,
    dtypes,
    evaluate,
    expand,
    iota,
    make_range,
    pad,
    permute,
    reshape,
    shrink,
)  # fmt: skip

INTERVALS = [(0, 0), (0, 3), (-3, 0), (-2, 2), (1, 4), (-5, -2), (3, 3), (-1, -1)]
BINARY = [
    Ops.ADD,
    Ops.SUB,
    Ops.MUL,
    Ops.FLOORDIV,
    Ops.MOD,
    Ops.CDIV,
    Ops.CMOD,
    Ops.MAX,
    Ops.MIN,
    Ops.AND,
    Ops.OR,
    Ops.XOR,
    Ops.SHL,
    Ops.SHR,
    Ops.LT,
    Ops.LE,
    Ops.EQ,
    Ops.NE,
]


def leaf(name: str, dtype: DType, low: int, high: int) -> UOp:
    return UOp(Ops.VARIABLE, dtype, (), (name, low, high))


def check(u: UOp, table: dict[UOp, np.ndarray]) -> None:
    values = evaluate(u, table)
    low, high = u.bounds
    assert low <= values.min(), u
    assert values.max() <= high, u


@pytest.mark.parametrize("op", BINARY, ids=str)
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.index], ids=str)
def test_two_operands(op: Op, dtype: DType) -> None:
    for (a, b), (c, d) in product(INTERVALS, INTERVALS):
        if op in (Ops.CDIV, Ops.CMOD) and c <= 0 <= d:
            continue
        x, y = leaf("x", dtype, a, b), leaf("y", dtype, c, d)
        left, right = np.meshgrid(np.arange(a, b + 1), np.arange(c, d + 1))
        name = "int64" if dtype is dtypes.index else dtype.name
        check(x.alu(op, y), {x: left.astype(name), y: right.astype(name)})


@pytest.mark.parametrize("op", BINARY[:3], ids=str)
def test_what_may_wrap_is_not_known(op: Op) -> None:
    for low, high in [(100, 127), (-128, -100), (-128, 127)]:
        x, y = leaf("x", dtypes.int8, low, high), leaf("y", dtypes.int8, low, high)
        left, right = np.meshgrid(np.arange(low, high + 1).astype(np.int8), np.arange(low, high + 1).astype(np.int8))
        check(x.alu(op, y), {x: left, y: right})


@pytest.mark.parametrize("op", [Ops.NEG, Ops.ABS], ids=str)
def test_one_operand(op: Op) -> None:
    for low, high in [*INTERVALS, (-128, -120), (-128, 127)]:
        x = leaf("x", dtypes.int8, low, high)
        check(x.alu(op), {x: np.arange(low, high + 1).astype(np.int8)})


def test_conversions() -> None:
    for low, high in [*INTERVALS, (-128, 127), (100, 300)]:
        x = leaf("x", dtypes.int32, low, high)
        for to in (dtypes.int8, dtypes.uint8, dtypes.bool, dtypes.int64, dtypes.index):
            check(x.cast(to), {x: np.arange(low, high + 1).astype(np.int32)})


def test_where_takes_both_sides() -> None:
    b, x, y = leaf("b", dtypes.bool, 0, 1), leaf("x", dtypes.int32, 1, 3), leaf("y", dtypes.int32, 7, 9)
    assert b.where(x, y).bounds == (1, 9)


def test_leaves() -> None:
    size = leaf("n", dtypes.index, 2, 9)
    assert make_range("i", 8, AxisKind.LOOP).bounds == (0, 7)
    assert make_range("i", size, AxisKind.LOOP).bounds == (0, 8)
    assert make_range("i", 0, AxisKind.LOOP).bounds == (0, 0)
    assert iota(5).bounds == (0, 4)
    assert UOp(Ops.IOTA, dtypes.int64, (), size).bounds == (0, 8)
    for none in (0, leaf("n", dtypes.index, 0, 0)):  # no value, and still no range that ends before it begins
        assert UOp(Ops.IOTA, dtypes.int64, (), none).bounds == (0, 0)
    assert const(dtypes.int32.vec(3), (4, -1, 2)).bounds == (-1, 4)
    assert const(dtypes.float32, 3).bounds == (float("-inf"), float("inf"))
    assert UOp(Ops.PARAM, dtypes.uint8, (), (0, 4)).bounds == (0, 255)
    assert UOp(Ops.SINK, dtypes.void).bounds == (0, 0)
    assert const(dtypes.float32, 3).cast(dtypes.int8).bounds == (-128, 127)
    assert (const(dtypes.float32, 3) < 4).bounds == (0, 1)


def test_vectors() -> None:
    x, y = leaf("x", dtypes.int32, 1, 3), leaf("y", dtypes.int32, 7, 9)
    both = UOp(Ops.LANES, dtypes.int32.vec(2), (x, y))
    assert both.bounds == (1, 9)
    assert UOp(Ops.LANE, dtypes.int32, (both,), 1).bounds == (1, 9)
    assert UOp(Ops.BROADCAST, dtypes.int32.vec(4), (x,)).bounds == (1, 3)


def test_movement_keeps_them() -> None:
    one = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 2, 9)).cast(dtypes.int64)
    assert expand(reshape(one, (1, 1)), (4, 1)).bounds == (2, 9)
    assert shrink(permute(expand(reshape(one, (1, 1)), (4, 3)), (1, 0)), [(0, 2), (1, 3)]).bounds == (2, 9)
    assert pad(reshape(one, (1,)), [(0, 1)]).bounds[0] <= 0  # zeros around it

"""The evaluator: each op of the table against NumPy written out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill.ir import (
    AxisKind,
    DType,
    InternalError,
    Op,
    OpGroup,
    Ops,
    UOp,
    assign,
    const,
    dtypes,
    evaluate,
    make_range,
    pad,
    permute,
    reduce_axes,
    reshape,
    round_bfloat16,
    shrink,
    strided,
    take,
    unwindow,
    window,
)

Array = np.ndarray[Any, np.dtype[Any]]
EDGES = [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, 1e-3, 100.0, -100.0, math.inf, -math.inf, math.nan]
INTS = [0, 1, -1, 2, -3, 7, -8, 100, -128, 127]


def leaves(dtype: DType, arity: int) -> tuple[list[UOp], list[Array]]:
    """Variables, and the arrays of all combinations of edge values."""
    values = np.array([0, 1] if dtype.is_bool else EDGES if dtype.is_float else INTS).astype(dtype.name)
    nodes = [UOp(Ops.VARIABLE, dtype, (), (f"v{n}", 0, 0)) for n in range(arity)]
    return nodes, [a.reshape(-1) for a in np.meshgrid(*[values] * arity)]


def shift_left(a: Array, b: Array) -> Array:
    return np.array([int(x) << int(y) if 0 <= y < 8 else 0 for x, y in zip(a, b, strict=True)]).astype(np.int8)


def shift_right(a: Array, b: Array) -> Array:
    return np.array([int(x) >> (int(y) if 0 <= y < 8 else 8) for x, y in zip(a, b, strict=True)]).astype(np.int8)


FLOATS: dict[Op, Callable[..., Any]] = {
    Ops.NEG: np.negative,
    Ops.ABS: np.abs,
    Ops.EXP: np.exp,
    Ops.EXP2: np.exp2,
    Ops.LOG: np.log,
    Ops.LOG2: np.log2,
    Ops.SIN: np.sin,
    Ops.COS: np.cos,
    Ops.TANH: np.tanh,
    Ops.ERF: lambda x: np.array([math.erf(v) for v in x]),
    Ops.SQRT: np.sqrt,
    Ops.TRUNC: np.trunc,
    Ops.FLOOR: np.floor,
    Ops.CEIL: np.ceil,
    Ops.ROUND: np.round,
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.DIV: lambda a, b: a / b,
    Ops.FLOORDIV: lambda a, b: a // b,
    Ops.MOD: lambda a, b: a % b,
    Ops.POW: lambda a, b: a**b,
    Ops.MAX: np.maximum,
    Ops.MIN: np.minimum,
    Ops.LT: lambda a, b: a < b,
    Ops.LE: lambda a, b: a <= b,
    Ops.EQ: lambda a, b: a == b,
    Ops.NE: lambda a, b: a != b,
}
WHOLE: dict[Op, Callable[..., Any]] = {
    **{
        op: FLOATS[op]
        for op in (Ops.NEG, Ops.ABS, Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX, Ops.MIN, Ops.LT, Ops.LE, Ops.EQ, Ops.NE)
    },
    Ops.FLOORDIV: lambda a, b: np.where(b == 0, 0, a // np.where(b == 0, 1, b)),
    Ops.MOD: lambda a, b: np.where(b == 0, 0, a % np.where(b == 0, 1, b)),
    Ops.AND: lambda a, b: a & b,
    Ops.OR: lambda a, b: a | b,
    Ops.XOR: lambda a, b: a ^ b,
    Ops.SHL: shift_left,
    Ops.SHR: shift_right,
    Ops.POW: lambda a, b: [
        int(x) ** int(y) % 256 if y >= 0 else int(Ops.POW.py(int(x), int(y))) % 256  # type: ignore[misc]
        for x, y in zip(a, b, strict=True)
    ],
    Ops.CDIV: lambda a, b: np.trunc(a / np.where(b == 0, 1, b).astype(float)),
    Ops.CMOD: lambda a, b: np.fmod(a, np.where(b == 0, 1, b)),
}
BOOLS: dict[Op, Callable[..., Any]] = {
    Ops.ADD: np.logical_or,
    Ops.MUL: np.logical_and,
    Ops.AND: np.logical_and,
    Ops.OR: np.logical_or,
    Ops.XOR: np.not_equal,
    Ops.MAX: np.logical_or,
    Ops.MIN: np.logical_and,
    Ops.EQ: np.equal,
    Ops.NE: np.not_equal,
    Ops.LT: np.less,
    Ops.LE: np.less_equal,
}
TABLE = [(op, d) for op in FLOATS for d in (dtypes.float16, dtypes.float32, dtypes.float64)]
TABLE += [(op, dtypes.int8) for op in WHOLE] + [(op, dtypes.bool) for op in BOOLS]


@pytest.mark.parametrize(("op", "dtype"), TABLE, ids=str)
def test_elementwise(op: Op, dtype: DType) -> None:
    nodes, arrays = leaves(dtype, op.arity or 1)
    expression = nodes[0].alu(op, *nodes[1:])
    with np.errstate(all="ignore"):
        table = BOOLS if dtype.is_bool else FLOATS if dtype.is_float else WHOLE
        want = np.asarray(table[op](*arrays)).astype(expression.dtype.name)
    got = evaluate(expression, dict(zip(nodes, arrays, strict=True)))
    keep = np.ones(got.shape, bool)
    if op in (Ops.CDIV, Ops.CMOD):
        keep = (arrays[1] != 0) & ~((arrays[0] == -128) & (arrays[1] == -1))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got[keep], want[keep])


def test_three_operands() -> None:
    nodes, arrays = leaves(dtypes.float32, 3)
    got = evaluate(nodes[0].alu(Ops.FMA, nodes[1], nodes[2]), dict(zip(nodes, arrays, strict=True)))
    with np.errstate(all="ignore"):
        want = (arrays[0].astype(np.float64) * arrays[1] + arrays[2]).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    chosen = evaluate((nodes[0] < nodes[1]).where(nodes[1], nodes[2]), dict(zip(nodes, arrays, strict=True)))
    np.testing.assert_array_equal(chosen, np.where(arrays[0] < arrays[1], arrays[1], arrays[2]))


def test_fma_of_float64_rounds_once() -> None:
    assert Ops.FMA.py is not None
    values = np.random.default_rng(1).standard_normal((3, 500)) * np.array([[1.0], [1e-3], [1e-3]])
    nodes = [UOp(Ops.VARIABLE, dtypes.float64, (), (name, 0, 0)) for name in "abc"]
    got = evaluate(nodes[0].alu(Ops.FMA, nodes[1], nodes[2]), dict(zip(nodes, values, strict=True)))
    np.testing.assert_array_equal(got, [Ops.FMA.py(*column) for column in values.T.tolist()])


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_scale_is_rounded_once(dtype: DType) -> None:
    most = 2 * int(np.finfo(dtype.name).maxexp) - 2
    values, by = (a.ravel() for a in np.meshgrid([0.7, 1.0, -1.3, np.nan], np.arange(-most, most + 1)))
    values, by = values.astype(dtype.name), by.astype(dtype.name)
    nodes = [UOp(Ops.VARIABLE, dtype, (), (name, 0, 0)) for name in "ab"]
    with np.errstate(all="ignore"):
        want = np.ldexp(values, by.astype(np.int32))
    got = evaluate(nodes[0].alu(Ops.SCALE, nodes[1]), dict(zip(nodes, (values, by), strict=True)))
    np.testing.assert_array_equal(got, want)
    assert Ops.SCALE.py is not None
    folded = [Ops.SCALE.py(*pair) for pair in zip(values.tolist(), by.tolist(), strict=True)]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.array(folded).astype(dtype.name), want)


def test_every_op_has_a_meaning_somewhere() -> None:
    """An op that is added must be added here, or to the tests of the stage it belongs to."""
    tested = {*FLOATS, *WHOLE, Ops.WHERE, Ops.FMA, Ops.SCALE, Ops.CAST, Ops.BITCAST}
    assert {op for op in Ops.rows() if op.is_elementwise} == tested


X = UOp(Ops.BUFFER, dtypes.float32, (), (0, "TEST", 24))
DATA = np.arange(24, dtype=np.float32) - 7
A, CUBE = reshape(X, (2, 3, 4)), DATA.reshape(2, 3, 4)
SCATTERED = np.zeros((24, 3), np.float32)
for _o in range(8):
    for _k in range(3):
        SCATTERED[_o * 2 + _k * 4, _k] = DATA[_o * 2 + _k * 4]
REPLACED = CUBE.copy()
REPLACED[0:2:1, 1:3:2] = 5
TENSORS: dict[str, tuple[UOp, Array]] = {
    "reshape": (reshape(X, (4, 6)), DATA.reshape(4, 6)),
    "permute": (permute(A, (2, 0, 1)), CUBE.transpose(2, 0, 1)),
    "pad": (pad(A, ((0, 0), (1, 2), (3, 0))), np.pad(CUBE, ((0, 0), (1, 2), (3, 0)))),
    "shrink": (shrink(A, ((0, 1), (1, 3), (2, 2))), CUBE[0:1, 1:3, 2:2]),
    "strided": (strided(A, (1, -2, 3)), CUBE[:, ::-2, ::3]),
    "window": (window(X, 0, 3, 2, 4), np.array([[DATA[o * 2 + k * 4] for k in range(3)] for o in range(8)])),
    "unwindow": (unwindow(window(X, 0, 3, 2, 4), 0, 24, 2, 4), SCATTERED),
    "sum": (reduce_axes(A, Ops.ADD, (0, 2)), CUBE.sum((0, 2), keepdims=True)),
    "max": (reduce_axes(A, Ops.MAX, (1,)), CUBE.max(1, keepdims=True)),
    "min": (reduce_axes(A, Ops.MIN, (1,)), CUBE.min(1, keepdims=True)),
    "product": (reduce_axes(shrink(A, ((0, 1), (0, 1), (0, 4))), Ops.MUL, (2,)), np.full((1, 1, 1), 840.0)),
    "any": (reduce_axes(A < 0, Ops.ADD, (2,)), np.asarray((CUBE < 0).any(2, keepdims=True))),
    "all": (reduce_axes(A < 0, Ops.MUL, (2,)), np.asarray((CUBE < 0).all(2, keepdims=True))),
    "take": (take(A, const(dtypes.int64, 1), 1), CUBE[:, 1]),
    "assign": (assign(A, const(dtypes.float32, 5), ((0, 2, 1), (1, 3, 2), (0, 4, 1))), REPLACED),
    "assign all": (assign(A, const(dtypes.float32, 5)), np.full((2, 3, 4), 5)),
    "cast": (A.cast(dtypes.int8), CUBE.astype(np.int8)),
    "cast to bool": (A.cast(dtypes.bool), CUBE != 0),
    "bitcast": (A.bitcast(dtypes.int32), CUBE.view(np.int32)),
    "narrower": (UOp(Ops.BITCAST, dtypes.uint8, (A,)), CUBE.view(np.uint8)),
    "detach": (UOp(Ops.DETACH, dtypes.float32, (A,)), CUBE),
    "iota": (UOp(Ops.IOTA, dtypes.int64, (), 5), np.arange(5)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(name: str) -> None:
    expression, want = TENSORS[name]
    np.testing.assert_array_equal(evaluate(expression, {X: DATA}), want)


def test_empty_reductions() -> None:
    empty = shrink(A, ((0, 0), (0, 3), (0, 4)))
    assert evaluate(reduce_axes(empty, Ops.ADD, (0,)), {X: DATA}).tolist() == np.zeros((1, 3, 4)).tolist()
    assert np.isneginf(evaluate(reduce_axes(empty, Ops.MAX, (0,)), {X: DATA})).all()


def test_a_kernel() -> None:
    """Rows of a matrix times a vector, with a gate that leaves out the last place."""
    out, matrix, vector = (
        UOp(Ops.PARAM, dtypes.float32, (), (slot, count)) for slot, count in ((0, 4), (1, 12), (2, 3))
    )
    i, k = make_range("i", 4, AxisKind.LOOP), make_range("k", 3, AxisKind.REDUCE)

    def load(buffer: UOp, *place: UOp) -> UOp:
        return UOp(Ops.LOAD, dtypes.float32, (UOp(Ops.INDEX, dtypes.float32, (buffer, *place)),))

    total = UOp(Ops.REDUCE, dtypes.float32, (load(matrix, i * 3 + k) * load(vector, k, k < 2), k), (Ops.ADD, 1))
    sink = UOp(
        Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, dtypes.float32, (out, i, i < 3)), total)),)
    )
    result, rows, weights = (
        np.full(4, 99, np.float32),
        np.arange(12, dtype=np.float32),
        np.array([1, 10, 100], np.float32),
    )
    evaluate(sink, {out: result, matrix: rows, vector: weights})
    np.testing.assert_array_equal(result, [*(rows.reshape(4, 3)[:3, :2] @ weights[:2]), 99])


def test_two_values_in_one_reduction() -> None:
    k = make_range("k", 4, AxisKind.REDUCE)
    both = UOp(Ops.REDUCE, dtypes.index, (k * 2, k * k, k), (Ops.ADD, 2))
    assert int(evaluate(both).reshape(())) == sum(2 * n + n * n for n in range(4))


def test_variables_come_by_name() -> None:
    n = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 9))
    assert int(evaluate(n * 2 + 1, variables={"n": 4})) == 9


def test_bfloat16_is_rounded_after_each_op() -> None:
    x = const(dtypes.bfloat16, 1.0)
    assert float(evaluate(x + const(dtypes.bfloat16, 2**-8))) == 1.0
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, -3.4e38, np.nan, np.inf, 0.1], np.float32)
    want = [1.0, 1 + 2**-6, -np.inf, np.nan, np.inf, 0.10009765625]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(round_bfloat16(values), np.array(want, np.float32))
    assert int(evaluate(x.bitcast(dtypes.uint16))) == 0x3F80
    assert float(evaluate(const(dtypes.uint16, 0x4000).bitcast(dtypes.bfloat16))) == 2.0


def test_what_has_no_meaning_here_is_refused() -> None:
    x = const(dtypes.float32, 1)
    for node in (UOp(Ops.BROADCAST, dtypes.float32.vec(4), (x,)), UOp(Ops.REG, dtypes.float32, (x,), "acc")):
        with pytest.raises((InternalError, KeyError, IndexError)):
            evaluate(node)
    with pytest.raises(InternalError, match="no data given for"):
        evaluate(X)


def test_groups_are_known() -> None:
    assert {op.group for op in Ops.rows()} == set(OpGroup)

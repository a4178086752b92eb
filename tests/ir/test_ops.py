"""The op table: rows are whole, and the facts they state are true of their Python meaning."""

from __future__ import annotations

import math
from itertools import product

import pytest

from kernmill.ir import AxisKind, Op, OpGroup, Ops

ROWS = list(Ops.rows())
INTS = [-3, -1, 0, 1, 2, 7]
FLOATS = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan]


def same(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)


def call(op: Op, *values: float) -> float:
    assert op.py is not None
    result: float = op.py(*values)
    return result


@pytest.mark.parametrize("op", ROWS, ids=str)
def test_a_row_is_whole(op: Op) -> None:
    assert Ops.named(op.name) is op
    assert repr(op) == op.name
    assert op.doc
    elementwise = op.group in (OpGroup.UNARY, OpGroup.BINARY, OpGroup.COMPARE, OpGroup.TERNARY, OpGroup.CONVERT)
    assert op.is_elementwise == elementwise
    if elementwise:
        assert op.arity == {OpGroup.UNARY: 1, OpGroup.CONVERT: 1, OpGroup.TERNARY: 3}.get(op.group, 2)
        assert (op.py is not None) == (op.group is not OpGroup.CONVERT)


@pytest.mark.parametrize("op", [op for op in ROWS if op.commutative], ids=str)
def test_commutative_ones_are(op: Op) -> None:
    for a, b in product(INTS, INTS):
        assert call(op, a, b) == call(op, b, a)


@pytest.mark.parametrize("op", [op for op in ROWS if op.associative], ids=str)
def test_associative_ones_are_on_ints(op: Op) -> None:
    for a, b, c in product(INTS, repeat=3):
        assert call(op, call(op, a, b), c) == call(op, a, call(op, b, c))


@pytest.mark.parametrize("op", [op for op in ROWS if op.idempotent], ids=str)
def test_idempotent_ones_are(op: Op) -> None:
    assert all(call(op, a, a) == a for a in INTS)


@pytest.mark.parametrize("op", [op for op in ROWS if op.unit is not None], ids=str)
def test_units_change_no_int(op: Op) -> None:
    assert op.unit is not None
    assert all(call(op, a, op.unit) == a for a in INTS)


@pytest.mark.parametrize(
    "op", [op for op in ROWS if op.py and op.group not in (OpGroup.TERNARY, OpGroup.VECTOR)], ids=str
)
def test_a_meaning_never_raises(op: Op) -> None:
    pools: list[list[float]] = (
        [[*INTS]]
        if op in (Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.CDIV, Ops.CMOD)
        else [[*INTS], FLOATS, [1e308, -1e308, 1e-308]]
    )
    if op.group is OpGroup.UNARY and op in (Ops.EXP, Ops.SIN):
        pools = pools[1:]
    for pool in pools:
        for values in product(pool, repeat=op.arity or 1):
            call(op, *values)


SPECIAL: list[tuple[Op, tuple[float, ...], float]] = [
    (Ops.EXP, (1000.0,), math.inf),
    (Ops.EXP2, (-math.inf,), 0.0),
    (Ops.LOG, (0.0,), -math.inf),
    (Ops.LOG2, (-0.0,), -math.inf),
    (Ops.LOG, (-1.0,), math.nan),
    (Ops.SIN, (math.inf,), math.nan),
    (Ops.SQRT, (-1.0,), math.nan),
    (Ops.TANH, (math.inf,), 1.0),
    (Ops.ERF, (-math.inf,), -1.0),
    (Ops.DIV, (1.0, -0.0), -math.inf),
    (Ops.DIV, (0.0, 0.0), math.nan),
    (Ops.MAX, (1.0, math.nan), math.nan),
    (Ops.MIN, (math.nan, 1.0), math.nan),
    (Ops.ROUND, (2.5,), 2.0),
    (Ops.ROUND, (3.5,), 4.0),
    (Ops.TRUNC, (-2.9,), -2.0),
    (Ops.FLOOR, (-2.1,), -3.0),
    (Ops.CEIL, (2.1,), 3.0),
    (Ops.POW, (0.0, -1.0), math.inf),
    (Ops.POW, (-0.0, -3.0), -math.inf),
    (Ops.POW, (-8.0, 1 / 3), math.nan),
    (Ops.POW, (-10.0, 309.0), -math.inf),
    (Ops.POW, (math.nan, 0.0), 1.0),
    (Ops.MOD, (-1.0, 3.0), 2.0),
    (Ops.MOD, (1.0, -math.inf), -math.inf),
    (Ops.MOD, (1.0, 0.0), math.nan),
    (Ops.FLOORDIV, (-1.0, 3.0), -1.0),
    (Ops.FLOORDIV, (1.0, 0.0), math.inf),
    (Ops.WHERE, (False, 1.0, 2.0), 2.0),
    (Ops.FMA, (2.0, 3.0, 4.0), 10.0),
    (Ops.LT, (math.nan, 1.0), False),
    (Ops.NE, (math.nan, math.nan), True),
]


@pytest.mark.parametrize(("op", "values", "want"), SPECIAL, ids=lambda v: str(v))
def test_special_cases(op: Op, values: tuple[float, ...], want: float) -> None:
    assert same(call(op, *values), want)


@pytest.mark.parametrize("op", [Ops.SQRT, Ops.TRUNC, Ops.FLOOR, Ops.CEIL, Ops.ROUND], ids=str)
def test_minus_zero_stays(op: Op) -> None:
    assert math.copysign(1, call(op, -0.0)) == -1


def test_kinds_of_loops_are_words() -> None:
    assert [str(kind) for kind in (AxisKind.LOOP, AxisKind.GLOBAL)] == ["loop", "global"]


def test_a_tile_is_a_product_of_matrices() -> None:
    """Four values of k in groups of two: b is woven, a and c are rows."""
    a, woven, c = [1, 2, 3, 4], [1, 10, 2, 20, 3, 30, 4, 40], [100, 200]
    assert Ops.MMA.py is not None
    assert Ops.MMA.py(a, woven, c, 1, 2, 4, 2) == [100 + 1 + 20 + 9 + 120, 200 + 2 + 40 + 12 + 160]

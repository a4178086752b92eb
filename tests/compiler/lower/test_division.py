"""Floor division, remainder and whole powers in the machine's ops, against NumPy."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from kernmill.ir import DType, Op, Ops, UOp, dtypes, evaluate, rewrite

# inside the compiler: no user of the package calls these
DIVISION = importlib.import_module("kernmill.compiler.lower.division").DIVISION
INTS = [d for d in dtypes.data if d.is_int]
Array = np.ndarray[Any, Any]


def leaf(dtype: DType, slot: int = 0) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (slot, 1))


def edges(dtype: DType, count: int = 150_000) -> Array:
    """Random values and the corners of the dtype."""
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype.name)
    some = rng.integers(info.min, info.max, count, dtype=dtype.name, endpoint=True)
    small = rng.integers(max(info.min, -20), 20, count, dtype=dtype.name)
    corners = [info.min, info.min + 1, 0, 1, 2, 3, info.max - 1, info.max, *([-1, -2, -3] if info.min else [])]
    return np.concatenate([some, small, np.array(corners * 20, dtype.name)])


def pairs(dtype: DType) -> tuple[Array, Array]:
    x = edges(dtype)
    grid = np.unique(x[-200:])
    a, b = (g.ravel() for g in np.meshgrid(grid, grid))
    return np.concatenate([x, x, a]), np.concatenate([np.random.default_rng(2).permutation(x), x[::-1], b])


def check_safe(root: UOp, values: dict[UOp, Array]) -> None:
    """No divide instruction sees 0, or the smallest int by -1."""
    for node in root.toposort():
        if node.op in (Ops.CDIV, Ops.CMOD):
            a, b = (evaluate(s, values) for s in node.src)
            assert not (b == 0).any()
            assert not (node.dtype.min < 0 and ((a == node.dtype.min) & (b == -1)).any())


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("op", [Ops.FLOORDIV, Ops.MOD], ids=str)
def test_division_is_numpys(op: Op, dtype: DType) -> None:
    a, b = pairs(dtype)
    values = {leaf(dtype): a, leaf(dtype, 1): b}
    root = rewrite(leaf(dtype).alu(op, leaf(dtype, 1)), DIVISION)
    assert op not in {n.op for n in root.toposort()}
    check_safe(root, values)
    with np.errstate(all="ignore"):
        want = (np.floor_divide if op is Ops.FLOORDIV else np.mod)(a, b)
    np.testing.assert_array_equal(evaluate(root, values), want)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("c", [1, 2, 64, 3, 7, 100, 0, -1, -2, -3, -128])
def test_division_by_a_constant(c: int, dtype: DType) -> None:
    if c < dtype.min:
        pytest.skip("unsigned")
    x, a = leaf(dtype), edges(dtype)
    for op, fn in ((Ops.FLOORDIV, np.floor_divide), (Ops.MOD, np.mod)):
        root = rewrite(x.alu(op, c), DIVISION)
        check_safe(root, {x: a})
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(evaluate(root, {x: a}), fn(a, np.array(c, dtype.name)))


def test_powers_of_two_and_bounds_make_it_short() -> None:
    x = leaf(dtypes.int32)
    assert rewrite(x // 8, DIVISION) is x >> 3
    assert rewrite(x % 8, DIVISION) is x & 7
    assert rewrite(x // 1, DIVISION) is x
    i = UOp(Ops.VARIABLE, dtypes.index, (), ("i", 0, 100))
    n = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 100))
    assert rewrite(i // n, DIVISION) is i.alu(Ops.CDIV, n)
    assert rewrite(i % n, DIVISION) is i.alu(Ops.CMOD, n)
    zero_too = UOp(Ops.VARIABLE, dtypes.index, (), ("m", 0, 100))
    assert rewrite(i // zero_too, DIVISION) is not i.alu(Ops.CDIV, zero_too)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_powers_wrap(dtype: DType) -> None:
    a, b = (v[::7] for v in pairs(dtype))
    b = np.where(np.arange(len(b)) % 2 == 0, b % np.array(9, dtype.name), b)
    root = rewrite(leaf(dtype).alu(Ops.POW, leaf(dtype, 1)), DIVISION)
    got = evaluate(root, {leaf(dtype): a, leaf(dtype, 1): b})
    modulus = 1 << dtype.bits
    want = [integer_power(int(x), int(y), modulus) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(got.astype(np.uint64) & np.uint64(modulus - 1), np.array(want, np.uint64))


def integer_power(x: int, y: int, modulus: int) -> int:
    if y >= 0:
        return pow(x, y, modulus)
    return x ** (y % 2) % modulus if abs(x) == 1 else 0


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 10, 63])
def test_constant_powers_multiply(exponent: int) -> None:
    x, a = leaf(dtypes.int64), edges(dtypes.int64)
    root = rewrite(x.alu(Ops.POW, exponent), DIVISION)
    assert {n.op for n in root.toposort()} <= {Ops.PARAM, Ops.MUL, Ops.CONST}
    np.testing.assert_array_equal(evaluate(root, {x: a}) * np.ones_like(a), np.power(a, exponent))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("op", [Ops.FLOORDIV, Ops.MOD], ids=str)
def test_division_of_floats(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    corners = [0.0, -0.0, 1, -1, 0.1, -0.3, 2.5, 7, -7, 1e3, -1e3, np.inf, -np.inf, np.nan, 1e-30, 3e-30]
    x, y = (g.ravel() for g in np.meshgrid(corners, corners))
    scale = 2.0 ** rng.integers(-20, 20, 100_000)
    a = np.concatenate([x, rng.normal(size=100_000) * scale, rng.integers(-99, 99, 100_000)]).astype(dtype.name)
    b = np.concatenate([y, rng.normal(size=100_000) * scale, rng.integers(-9, 9, 100_000) / 4]).astype(dtype.name)
    with np.errstate(all="ignore"):
        near = ~(np.abs(a / b) > 2.0 ** (22 if dtype.bits == 32 else 51)) | (b == 0) | np.isinf(a)
        a, b = a[near], b[near]
        want = (np.floor_divide if op is Ops.FLOORDIV else np.mod)(a, b)
    got = evaluate(rewrite(leaf(dtype).alu(op, leaf(dtype, 1)), DIVISION), {leaf(dtype): a, leaf(dtype, 1): b})
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(want) & ~np.isnan(want))


@pytest.mark.parametrize("op", [Ops.FLOORDIV, Ops.MOD], ids=str)
def test_division_of_halves_and_of_vectors(op: Op) -> None:
    a, b = (np.array(v, np.float16) for v in ([7, -7, 0.5, np.inf, 1], [2, 2, 0.125, 1, 0]))
    values = {leaf(dtypes.float16): a, leaf(dtypes.float16, 1): b}
    got = evaluate(rewrite(leaf(dtypes.float16).alu(op, leaf(dtypes.float16, 1)), DIVISION), values)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, (np.floor_divide if op is Ops.FLOORDIV else np.mod)(a, b))
    for dtype in (dtypes.int32, dtypes.float32, dtypes.bfloat16):
        wide = dtype.vec(8)
        root = rewrite(leaf(wide).alu(op, leaf(wide, 1)), DIVISION)
        assert root.dtype is wide
        assert {n.dtype.lanes for n in root.toposort()} == {8}


def test_every_rule_fires() -> None:
    for rule in DIVISION:
        dtype = dtypes.float32 if rule.kind == "float" else dtypes.int32
        before = rule.fired
        assert rule.pattern.op is not None
        DIVISION.apply(leaf(dtype).alu(rule.pattern.op, leaf(dtype, 1)))
        assert rule.fired == before + 1, rule

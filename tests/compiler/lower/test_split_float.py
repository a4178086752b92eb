"""Floats taken apart and put together, in the evaluator."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from kernmill.ir import DType, Ops, UOp, dtypes, evaluate

tools: Any = importlib.import_module("kernmill.compiler.lower.split_float")  # inside the compiler: nobody else calls it
FLOATS = [dtypes.float32, dtypes.float64]
Array = np.ndarray[Any, Any]


def leaf(dtype: DType, slot: int = 0) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (slot, 1))


def values(dtype: DType) -> Array:
    rng = np.random.default_rng(dtype.bits)
    wide = np.concatenate([rng.normal(0, 50, 500), 10.0 ** rng.uniform(-30, 30, 500)])
    return wide.astype(dtype.name)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_magnitude_and_sign(dtype: DType) -> None:
    x, y = leaf(dtype), leaf(dtype, 1)
    a = np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf], dtype.name)
    np.testing.assert_array_equal(evaluate(tools.magnitude(x), {x: a}), np.abs(a))
    assert not np.signbit(evaluate(tools.magnitude(x), {x: a})).any()
    signs = a[::-1].copy()
    got = evaluate(tools.copy_sign(tools.magnitude(x), y), {x: a, y: signs})
    np.testing.assert_array_equal(np.signbit(got), np.signbit(signs))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_split_gives_mantissa_and_exponent(dtype: DType) -> None:
    x = leaf(dtype)
    a = np.abs(values(dtype)) + np.finfo(dtype.name).tiny
    mantissa, exponent = (evaluate(part, {x: a}) for part in tools.split(x))
    np.testing.assert_array_equal(np.ldexp(mantissa, exponent.astype(int)), a)
    assert ((mantissa > 0.5) & (mantissa < 2)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clamp_keeps_nan(dtype: DType) -> None:
    x = leaf(dtype)
    a = np.array([np.nan, -np.inf, -3, 0.5, 3, np.inf], dtype.name)
    np.testing.assert_array_equal(evaluate(tools.clamp(x, -1.0, 1.0), {x: a}), np.clip(a, -1, 1))
    np.testing.assert_array_equal(evaluate(tools.clamp(x, None, 1.0), {x: a}), np.minimum(a, 1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nearest_rounds_to_a_whole_number(dtype: DType) -> None:
    x = leaf(dtype)
    a = np.array([-7.4, -1.6, -0.2, 0.0, 0.4, 3.6, 100.3], dtype.name)
    whole, biased = (evaluate(part, {x: a}) for part in tools.nearest(x, 1.0, 10))
    np.testing.assert_array_equal(whole, np.rint(a))
    np.testing.assert_array_equal(biased.astype(np.int64) - int(biased[3]), np.rint(a).astype(int))  # a[3] is 0


def test_high_low_adds_up() -> None:
    high, low = tools.high_low(leaf(dtypes.float32), 0.6931471805599453, 2.3190468138462996e-17)
    assert abs(high + low - 0.6931471805599453) < 1e-14
    assert float(np.float32(high)) == high

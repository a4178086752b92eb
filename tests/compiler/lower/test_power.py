"""Powers by a constant are products; the polynomial is tested with the other functions in test_transcendental.py."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from kernmill.ir import Ops, UOp, dtypes, evaluate

power: Any = importlib.import_module("kernmill.compiler.lower.power")  # inside the compiler: nobody else calls it
X = UOp(Ops.PARAM, dtypes.float32, (), (0, 1))
VALUES = np.array([0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 7.0, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -0.5, -2.0])
def test_by_a_constant(exponent: float) -> None:
    found = power.pow_by_constant(X, exponent)
    if found is None:
        return
    with np.errstate(all="ignore"):
        want = np.power(VALUES.astype(np.float64), np.full(len(VALUES), exponent)).astype(np.float32)
    np.testing.assert_allclose(evaluate(found, {X: VALUES}), want, rtol=3e-7)


def test_a_square_is_one_product() -> None:
    found = power.pow_by_constant(X, 2.0)
    assert found is X * X


def test_other_exponents_take_the_long_way() -> None:
    assert power.pow_by_constant(X, 2.7) is None


def test_special_cases_of_the_polynomial() -> None:
    y = UOp(Ops.PARAM, dtypes.float32, (), (1, 1))
    a, b = (g.reshape(-1) for g in np.meshgrid(VALUES, VALUES))
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64))
        got = evaluate(power.pow_to_polynomial(X, y), {X: a, y: b})
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=1e-6)

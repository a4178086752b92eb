"""The fitted polynomials, at a few points each: a damaged digit shows."""

from __future__ import annotations

import importlib
import math

import pytest

POLYNOMIALS = importlib.import_module("kernmill.compiler.lower.coefficients").POLYNOMIALS  # inside the compiler


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_both_precisions_describe_one_function(name: str) -> None:
    assert all(math.isfinite(c) for row in POLYNOMIALS[name].values() for c in row)
    if len(POLYNOMIALS[name]) < 2:
        return
    short, long = POLYNOMIALS[name][32], POLYNOMIALS[name][64]
    assert len(long) > len(short)
    assert short[0] == pytest.approx(long[0], rel=1e-5)
    assert short[1] == pytest.approx(long[1], rel=1e-3)


def test_exp() -> None:
    for t in (-0.3, -0.01, 0.2, 0.34):
        value = sum(c * t**n for n, c in enumerate(POLYNOMIALS["EXP"][64]))
        assert value == pytest.approx(math.expm1(t) / t, rel=1e-15)

"""The sign of zero: odd functions keep it, and functions with another value at zero have it as in C99, annex F."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor

ODD = (
    "neg", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p", "erf", "floor", "ceil",
    "trunc", "round", "sign", "softsign", "hardtanh", "silu", "gelu", "mish", "selu", "elu", "celu", "leaky_relu",
    "hardswish",
)  # fmt: skip
SAME = {name for name in ODD if hasattr(np, name)} - {"round", "sign"}  # NumPy's sign of -0.0 is 0.0
NUMPY = {
    "asin": np.arcsin, "atan": np.arctan, "asinh": np.arcsinh, "atanh": np.arctanh, "neg": np.negative,
    "round": np.rint, **{name: getattr(np, name) for name in SAME},
    **{name: getattr(np, name) for name in ("abs", "sqrt", "square", "cos", "cosh", "exp", "exp2", "log", "log2")},
    "reciprocal": np.reciprocal,
}  # fmt: skip
PAIRS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "remainder": np.remainder,
    "fmod": np.fmod, "floor_divide": np.floor_divide, "atan2": np.arctan2, "hypot": np.hypot, "pow": np.power,
    "copysign": np.copysign, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip


def equal_signs(got: Tensor, want: Any) -> None:
    values = got.numpy()
    np.testing.assert_array_equal(values == 0, want == 0)
    is_number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(values[is_number]), np.signbit(want[is_number]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_functions_have_numpys_sign_at_zero(dtype: str) -> None:
    x = np.array([0.0, -0.0], dtype)
    for name, theirs in NUMPY.items():
        with np.errstate(all="ignore"):
            want = theirs(x)
        for made in (Tensor(x), Tensor(x).contiguous().realize()):
            equal_signs(getattr(made, name)(), want)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_odd_functions_keep_the_sign_of_zero(dtype: str) -> None:
    """Named regression: asinh(-0.0) and log1p(-0.0) were 0.0."""
    x = Tensor(np.array([0.0, -0.0], dtype)).realize()
    for name in ODD:
        signs = [False, True] if name != "neg" else [True, False]
        assert np.signbit(getattr(x, name)().numpy()).tolist() == signs, name


def test_pairs_have_numpys_sign_at_zero() -> None:
    a, b = (part.ravel() for part in np.meshgrid(*[np.array([0.0, -0.0, 2.0, -3.0], np.float32)] * 2))
    for name, theirs in PAIRS.items():
        with np.errstate(all="ignore"):
            equal_signs(getattr(Tensor(a), name)(Tensor(b)), theirs(a, b))

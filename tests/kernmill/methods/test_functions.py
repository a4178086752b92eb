from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dtypes
from tests.kernmill.against import close, same, values, with_torch

# name: (least and greatest argument, units in the last place allowed)
FUNCTIONS: dict[str, tuple[float, float, int]] = {
    "exp": (-20, 20, 2), "exp2": (-20, 20, 2), "log": (1e-6, 1e6, 2), "log2": (1e-6, 1e6, 2), "log10": (1e-6, 1e6, 3),
    "log1p": (-0.99, 50, 3), "expm1": (-20, 20, 5), "sqrt": (0, 1e6, 0), "sin": (-30, 30, 3), "cos": (-30, 30, 3),
    "tan": (-1.5, 1.5, 5), "asin": (-1, 1, 5), "acos": (-1, 1, 5), "atan": (-50, 50, 4), "sinh": (-80, 80, 6),
    "cosh": (-80, 80, 5), "tanh": (-10, 10, 4), "asinh": (-1e6, 1e6, 6), "acosh": (1, 1e6, 6),
    "atanh": (-0.99, 0.99, 6),
    "floor": (-5, 5, 0), "ceil": (-5, 5, 0), "trunc": (-5, 5, 0), "abs": (-5, 5, 0), "square": (-5, 5, 1),
    "reciprocal": (0.1, 5, 1),
}  # fmt: skip
NAMES = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}


def units_off(got: Any, want: Any) -> float:
    """The largest distance in units in the last place of float32."""
    spacing = np.spacing(np.maximum(np.abs(want), np.finfo(np.float32).tiny).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - want) / spacing, initial=0.0))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_near(name: str) -> None:
    low, high, allowed = FUNCTIONS[name]
    x = values(2000, low=low, high=high)
    x = np.concatenate([x, np.linspace(max(low, -1e-3), min(high, 1e-3), 50).astype(np.float32)]) if low <= 0 else x
    want = getattr(np, NAMES.get(name, name))(x.astype(np.float64))
    assert units_off(getattr(Tensor(x), name)().numpy(), want) <= allowed + 0.51


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-30, 1e30, -1e30], np.float32)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("tan", "sin", "cos")])
def test_functions_of_special_values(name: str) -> None:
    with np.errstate(all="ignore"):
        want = getattr(np, NAMES.get(name, name))(SPECIAL)
    close(getattr(Tensor(SPECIAL), name)(), want, 1e-6, 1e-37)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("square", "reciprocal")])
def test_gradients_of_functions(name: str) -> None:
    low, high, _ = FUNCTIONS[name]
    x = values(40, low=max(low, -8), high=min(high, 8))
    with_torch(lambda t: getattr(t, name)(), lambda t: getattr(t, name)(), [x], 2e-5)


@pytest.mark.parametrize("name", ["exp", "log1p", "expm1", "atan", "sinh", "asin", "tanh", "sigmoid"])
def test_float64_functions_are_of_float64_precision(name: str) -> None:
    x = values(200, low=-0.9, high=0.9).astype(np.float64)
    own = {"sigmoid": lambda v: 1 / (1 + np.exp(-v))}
    want = own[name](x) if name in own else getattr(np, NAMES.get(name, name))(x)
    close(getattr(Tensor(x), name)(), want, 4e-15, 1e-16)


def test_round_takes_ties_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999], np.float32)
    same(Tensor(x).round(), np.round(x))
    close(Tensor(x).round(decimals=1), np.round(x, 1))
    same(Tensor([1, 2]).round(), np.array([1, 2]))


def test_ints_go_in_as_float32() -> None:
    assert Tensor([1, 2]).exp().dtype is dtypes.float32
    close(Tensor([1, 4]).sqrt(), [1, 2])
    close(Tensor([True]).exp(), [math.e])


def test_erf() -> None:
    x = values(100, low=-4, high=4)
    want = np.array([math.erf(v) for v in x.astype(np.float64)])
    close(Tensor(x).erf(), want, 1e-6, 1e-7)


def test_sigmoid_neither_overflows_nor_does_its_gradient() -> None:
    x = np.array([-1e4, -100, -1, 0, 1, 100, 1e4], np.float32)
    with_torch(lambda t: t.sigmoid(), lambda t: t.sigmoid(), [x])


def test_logaddexp_neither_overflows_nor_does_its_gradient() -> None:
    a, b = np.array([800, -800, 0, 3, -3], np.float32), np.array([799, -802, 0, -50, 90], np.float32)
    with_torch(lambda x, y: x.logaddexp(y), lambda x, y: x.logaddexp(y), [a, b])
    one_end = np.array([np.inf, -np.inf, 2], np.float32)
    with_torch(
        lambda x, y: x.logaddexp(y), lambda x, y: x.logaddexp(y), [one_end, np.array([2, 3, np.inf], np.float32)]
    )
    ends = np.array([-np.inf, np.inf, np.inf, np.nan], np.float32)
    with np.errstate(invalid="ignore"):
        close(Tensor(ends).logaddexp(Tensor(ends[::-1].copy())), np.logaddexp(ends, ends[::-1]))
    close(Tensor(ends[:1]).logaddexp(-math.inf), [-np.inf])


def test_asinh_has_a_gradient_at_zero() -> None:
    x = np.array([0, -0.0, 1, -2, 1e5, -1e5, 1e30], np.float32)
    with_torch(lambda t: t.asinh(), lambda t: t.asinh(), [x])


ENDS = {
    "asin": (-1, 1, 0, -0.0, 2),
    "acos": (-1, 1, 0, -0.0, 2),
    "acosh": (1, 2, np.inf, 0),
    "atanh": (-1, 1, 0, -0.0, 2),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ENDS)
def test_gradients_at_the_ends_of_a_range_are_infinite(name: str, dtype: Any) -> None:
    """Once they were inf * 0."""
    with_torch(lambda t: getattr(t, name)(), lambda t: getattr(t, name)(), [np.array(ENDS[name], dtype)])


@pytest.mark.parametrize("exponent", [-1, -0.5, -1.5, 0.5, 1.5, 3])
def test_gradients_of_powers_at_zero_and_infinity(exponent: float) -> None:
    x = np.array([0, -0.0, np.inf, -np.inf, 2, 1e-30, 1e30, -1e30], np.float32)
    x = np.abs(x) if exponent % 1 else x
    with np.errstate(all="ignore"):
        with_torch(lambda t: t**exponent, lambda t: t**exponent, [x])


def test_logaddexp_of_equal_values_has_a_second_gradient() -> None:
    """Once the larger one was shared between them, which has none."""
    a, b = (Tensor(np.array([1.0, 2.0, -3.0]), requires_grad=True) for _ in range(2))
    first = a.logaddexp(b).sum().gradient(a)[0]
    np.testing.assert_allclose(first.numpy(), 0.5)
    np.testing.assert_allclose(first.sum().gradient(a)[0].numpy(), 0.25)
    np.testing.assert_allclose(first.sum().gradient(b)[0].numpy(), -0.25)


def test_rounding_to_decimals_keeps_ints_and_ties() -> None:
    whole = np.array([15, 25, -35, 149])
    for decimals in (1, 0, -1, -2):
        found = Tensor(whole).round(decimals=decimals)
        assert found.dtype is dtypes.int64
        np.testing.assert_array_equal(found.numpy(), np.round(whole, decimals))
    ties = np.array([250, 350, -150, 50], np.float32)  # a product with 0.01 is no tie any more
    np.testing.assert_array_equal(Tensor(ties).round(decimals=-2).numpy(), np.round(ties, -2))


SIGNED = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e38, 3.0, -2.5]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_angles_of_points(dtype: Any) -> None:
    with np.errstate(over="ignore", under="ignore"):
        y, x = np.meshgrid(np.array(SIGNED).astype(dtype), np.array(SIGNED).astype(dtype))
    want = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    found = Tensor(y).atan2(Tensor(x)).numpy()
    assert found.dtype == dtype
    allowed = {2: 2e-3, 4: 1e-6, 8: 1e-14}[np.dtype(dtype).itemsize]
    np.testing.assert_allclose(found.astype(np.float64), want.astype(dtype), rtol=allowed, atol=np.finfo(dtype).tiny)
    is_number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(want)[is_number])
    with_torch(lambda a, b: a.atan2(b), lambda a, b: a.atan2(b), [values(200), values(200, seed=1)], 1e-5)
    axes = [np.array([0, 0, 1, 1, -1], np.float32), np.array([1, -1, 0, 1, -1], np.float32)]
    with_torch(lambda a, b: a.atan2(b), lambda a, b: a.atan2(b), axes, 1e-6)
    same(Tensor([1]).atan2(0), np.array([math.pi / 2], np.float32))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_in_place_of_nan_and_infinities(dtype: Any) -> None:
    x = np.array([math.nan, math.inf, -math.inf, 0.0, -2.0], dtype)
    same(Tensor(x).nan_to_num(), np.nan_to_num(x))
    same(Tensor(x).nan_to_num(1, 2, 3), np.nan_to_num(x, nan=1, posinf=2, neginf=3))
    assert Tensor(x).bfloat16().nan_to_num().isfinite().all().item()
    same(Tensor([1, 2]).nan_to_num(), np.array([1, 2]))

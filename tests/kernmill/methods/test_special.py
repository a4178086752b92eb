"""Special functions against mpmath in float64 and float32, their gradients, special values, every device."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from kernmill import Context, GradientError, SettingError, Tensor, jit
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
POSITIVE = np.concatenate([np.geomspace(1e-5, 1e5, 9), np.linspace(0.15, 12.2, 17)])
NEGATIVE = -np.linspace(0.15, 9.37, 12)
AROUND = np.concatenate([np.linspace(-29.5, 29.3, 14), [1e-6, 0.3, 45.0]])
INSIDE = np.concatenate([np.linspace(-0.99, 0.99, 11), 1 - np.geomspace(1e-14, 1e-3, 5)])
BESSEL = mpmath.besseli


def scaled(order: int) -> Any:
    return lambda x: BESSEL(order, x) * mpmath.exp(-abs(x))


# name: the method's arguments, the function, points, the error in units of the dtype's epsilon by max(1, |value|)
CASES: dict[str, tuple[str, tuple[Any, ...], Any, Any]] = {
    "lgamma": ("lgamma", (), lambda x: mpmath.re(mpmath.loggamma(x)), np.concatenate([POSITIVE, NEGATIVE])),
    "digamma": ("digamma", (), mpmath.digamma, np.concatenate([POSITIVE, NEGATIVE])),
    "trigamma": ("polygamma", (1,), lambda x: mpmath.psi(1, x), np.concatenate([POSITIVE, NEGATIVE])),
    "polygamma": ("polygamma", (4,), lambda x: mpmath.psi(4, x), POSITIVE[POSITIVE > 1e-3]),
    "zeta": ("zeta", (1.5,), lambda x: mpmath.zeta(x, 1.5), np.linspace(1.1, 9, 9)),
    "erfc": ("erfc", (), mpmath.erfc, np.linspace(-5, 9, 15)),
    "erfinv": ("erfinv", (), mpmath.erfinv, INSIDE),
    "i0": ("i0", (), lambda x: BESSEL(0, x), AROUND),
    "i1": ("i1", (), lambda x: BESSEL(1, x), AROUND),
    "i0e": ("i0e", (), scaled(0), AROUND),
    "i1e": ("i1e", (), scaled(1), AROUND),
    "sinc": ("sinc", (), mpmath.sincpi, AROUND),
    "logit": ("logit", (), lambda x: mpmath.log(x / (1 - x)), np.linspace(0.01, 0.98, 9)),
}
WITH_GRADIENT = [name for name in CASES if name not in ("zeta", "polygamma")]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", list(CASES))
def test_values(name: str, dtype: str) -> None:
    method, args, function, points = CASES[name]
    x = points.astype(dtype)
    x = x[np.abs(x) < 1] if name == "erfinv" else x
    with mpmath.workdps(30):
        want = np.array([float(function(mpmath.mpf(float(v)))) for v in x])
    got = getattr(Tensor(x), method)(*args)
    assert got.dtype.name == dtype
    near = np.abs(want) < np.finfo(dtype).max
    error = np.abs(got.numpy().astype(float) - want)[near] / np.maximum(1, np.abs(want[near]))
    assert error.max() < 8 * np.finfo(dtype).eps


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_gradients(name: str) -> None:
    method, args, function, points = CASES[name]
    x = points[(np.abs(points) < 20) & (np.abs(points) > 0.01)]
    x = x[np.abs(x) < 0.9999] if name == "erfinv" else x[x > 0] if name == "trigamma" else x
    with mpmath.workdps(30):
        want = np.array([float(mpmath.diff(function, mpmath.mpf(float(v)))) for v in x])
    leaf = Tensor(x, requires_grad=True)
    getattr(leaf, method)(*args).sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), want, rtol=2e-13, atol=2e-13)


def test_gradients_of_two_operands() -> None:
    x, y = Tensor([0.0, 2.0], requires_grad=True), Tensor([3.0, 4.0], requires_grad=True)
    x.xlogy(y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert y.grad.tolist() == [0.0, 0.5]
    q = Tensor([1.5], requires_grad=True)
    Tensor([2.0]).zeta(q).sum().backward()
    assert q.grad is not None
    assert q.grad.item() == pytest.approx(-2 * float(mpmath.zeta(3, 1.5)), rel=1e-6)


def test_special_values() -> None:
    inf, nan = math.inf, math.nan

    def shown(x: Tensor) -> Any:
        return [round(v, 6) if math.isfinite(v) else v for v in x.tolist()]

    def equal(a: Any, b: Any) -> bool:
        return bool(np.array_equal(a, b, equal_nan=True))

    assert shown(Tensor([0.0, -1.0, inf, -inf, 1.0, 2.0]).lgamma()) == [inf, inf, inf, inf, 0.0, 0.0]
    assert equal(shown(Tensor([0.0, -2.0, inf, nan]).digamma()), [-inf, nan, inf, nan])
    assert equal(shown(Tensor([1.0, -1.0, 2.0, 0.0, nan]).erfinv()), [inf, -inf, nan, 0.0, nan])
    assert equal(shown(Tensor([inf, -inf, nan, 0.0]).erfc()), [0.0, 2.0, nan, 1.0])
    assert equal(shown(Tensor([inf, -inf, nan, 0.0]).i0()), [inf, inf, nan, 1.0])
    assert equal(shown(Tensor([inf, -inf, nan, 0.0]).i1e()), [0.0, 0.0, nan, 0.0])
    assert equal(shown(Tensor([0.0, 0.0, 1.0, nan]).xlogy(Tensor([0.0, nan, 0.0, 1.0]))), [0.0, nan, -inf, nan])
    assert shown(Tensor([0.0, 1.0, -3.0]).sinc()) == [1.0, 0.0, 0.0]
    assert shown(Tensor([0.0, 1.0]).logit()) == [-inf, inf]
    assert shown(Tensor([0.0]).logit(0.25)) == [round(math.log(1 / 3), 6)]
    assert equal(shown(Tensor([1.0, 0.5, 2.0]).zeta(Tensor([1.0, 1.0, -1.0]))), [inf, nan, nan])
    assert equal(shown(Tensor([-1.5]).polygamma(2)), [nan])


def test_dtypes_and_shapes() -> None:
    assert Tensor([1, 2, 3]).lgamma().dtype.name == "float32"
    assert Tensor([1.0]).half().i0().dtype.name == "float16"
    assert Tensor.ones(0, 3).digamma().numpy().shape == (0, 3)
    assert Tensor(2.0).erfc().shape == ()
    assert Tensor.ones(2, 1).xlogy(Tensor.ones(3)).shape == (2, 3)


def test_captured() -> None:
    f = jit(lambda x: x.lgamma() + x.i0e())
    for start in (1.0, 2.0, 3.0):
        x = np.linspace(start, start + 1, 5)
        want = [math.lgamma(v) + float(scaled(0)(v)) for v in x]
        np.testing.assert_allclose(f(Tensor(x)).numpy(), want, rtol=1e-13)


def test_every_device(device: str) -> None:
    with Context(DEVICE=device):
        if not device.startswith("NULL"):
            x = np.linspace(0.1, 0.9, 5)
            np.testing.assert_allclose(Tensor(x).lgamma().numpy(), [math.lgamma(v) for v in x], rtol=1e-13)
            np.testing.assert_allclose(Tensor(x).erfc().numpy(), [math.erfc(v) for v in x], rtol=1e-13)


def test_bad_calls() -> None:
    for n in (-1, 31, 1.5, True):
        with pytest.raises(SettingError, match="must be an integer from 0 to 30"):
            Tensor([1.0]).polygamma(n)  # type: ignore[arg-type]
    with pytest.raises(GradientError, match="no gradient by the exponent"):
        Tensor([2.0], requires_grad=True).zeta(1.0)

"""Incomplete gamma and beta functions against mpmath, their gradients, special values."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from kernmill import Context, GradientError, Tensor
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
INF, NAN = math.inf, math.nan
SHAPES = np.geomspace(2e-3, 900, 60)
SPREADS = np.tile([-2.5, -1.0, -0.1, 0.0, 0.3, 2.0], 10)


def gamma_points(dtype: str) -> tuple[Any, Any]:
    a = SHAPES.astype(dtype)
    return a, (a * np.exp(SPREADS / np.sqrt(a + 1))).astype(dtype)


def beta_points(dtype: str) -> tuple[Any, Any, Any]:
    a, b = SHAPES.astype(dtype), np.roll(SHAPES, 17).astype(dtype)
    mean = a / (a + b)
    spread = np.sqrt(mean * (1 - mean) / (a + b + 1))
    return a, b, np.clip(mean + SPREADS * spread, 1e-3, 0.999).astype(dtype)


def wanted(function: Any, *points: Any) -> Any:
    with mpmath.workdps(40):
        return np.array([float(function(*map(mpmath.mpf, map(float, p)))) for p in zip(*points, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values(dtype: str) -> None:
    a, x = gamma_points(dtype)
    below = wanted(lambda a, x: mpmath.gammainc(a, 0, x, regularized=True), a, x)
    above = wanted(lambda a, x: mpmath.gammainc(a, x, mpmath.inf, regularized=True), a, x)
    eps = float(np.finfo(dtype).eps)
    assert np.abs(Tensor(a).gammainc(Tensor(x)).numpy() - below).max() < 50 * eps
    found = Tensor(a).gammaincc(Tensor(x)).numpy()
    assert np.abs(found - above).max() < 50 * eps
    np.testing.assert_allclose(found[above > 1e-30], above[above > 1e-30], rtol=1000 * eps)
    a, b, x = beta_points(dtype)
    share = wanted(lambda a, b, x: mpmath.betainc(a, b, 0, x, regularized=True), a, b, x)
    assert np.abs(Tensor(a).betainc(Tensor(b), Tensor(x)).numpy() - share).max() < 200 * eps


@pytest.mark.slow
def test_gradients() -> None:
    a, x = gamma_points("float64")
    leaf = Tensor(x, requires_grad=True)
    (Tensor(a).gammainc(leaf) - 2 * Tensor(a).gammaincc(leaf)).sum().backward()
    density = wanted(lambda a, x: mpmath.exp((a - 1) * mpmath.log(x) - x - mpmath.loggamma(a)), a, x)
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), 3 * density, rtol=1e-12)
    a, b, x = beta_points("float64")
    leaf = Tensor(x, requires_grad=True)
    Tensor(a).betainc(Tensor(b), leaf).sum().backward()
    density = wanted(lambda a, b, x: x ** (a - 1) * (1 - x) ** (b - 1) / mpmath.beta(a, b), a, b, x)
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), density, rtol=1e-11)


def test_shapes_without_a_gradient() -> None:
    shape = Tensor([1.0], requires_grad=True)
    for call, args in (("gammainc", (1.0,)), ("gammaincc", (1.0,)), ("betainc", (1.0, 0.5))):
        with pytest.raises(GradientError, match="c: there is no gradient by a shape") as caught:
            getattr(shape, call)(*args)
        assert str(caught.value) == f"{call}: there is no gradient by a shape. Give it as .detach()."


@pytest.mark.slow
def test_special_values() -> None:
    shapes, points = [1.0, 1.0, 2.0, -1.0, 1.0, 0.0], [0.0, 1.0, INF, 1.0, NAN, 1.0]
    found = Tensor(shapes).gammainc(Tensor(points)).numpy()
    np.testing.assert_allclose(found, [0.0, 1 - math.exp(-1), 1.0, NAN, NAN, NAN], rtol=1e-6)
    found = Tensor(shapes).gammaincc(Tensor(points)).numpy()
    np.testing.assert_allclose(found, [1.0, math.exp(-1), 0.0, NAN, NAN, NAN], rtol=1e-6)
    found = Tensor([1.0, 2.0, 1.0, 1.0, -1.0, 1.0]).betainc(1.0, Tensor([0.0, 0.5, 1.0, 1.5, 0.5, NAN])).numpy()
    np.testing.assert_allclose(found, [0.0, 0.25, 1.0, NAN, NAN, NAN], rtol=1e-6)
    x = Tensor([0.0, 0.0, 0.0, 1.0, 1.0], requires_grad=True)
    Tensor([1.0, 2.0, 0.5, 2.0, 3.0]).betainc(Tensor([2.0, 2.0, 2.0, 1.0, 2.0]), x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, INF, 2.0, 0.0]


def test_on_the_reference_device() -> None:
    with Context(DEVICE="PYTHON"):
        assert Tensor([3.0]).gammainc(2.0).item() == pytest.approx(1 - 5 * math.exp(-2), rel=1e-6)
        assert Tensor([2.0]).betainc(2.0, 0.25).item() == pytest.approx(0.15625, rel=1e-6)

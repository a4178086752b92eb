"""Derivatives of functions: against formulas, each other and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, GradientError, ShapeError, Tensor, functional, jit
from kernmill.functional import grad, hessian, jacobian, jvp, value_and_grad, vjp


def loss(p: dict[str, Any], x: Tensor) -> Tensor:
    found: Tensor = ((x @ p["w"]).tanh() * p["parts"][0] + p["parts"][1]).square().sum()
    return found


def parameters() -> dict[str, Any]:
    draw = np.random.default_rng(3)
    return {"w": Tensor(draw.standard_normal((3, 2))), "parts": [Tensor(draw.standard_normal(2)), Tensor(0.5)]}


def test_gradients_have_the_form_of_the_argument() -> None:
    p, x = parameters(), Tensor(np.random.default_rng(4).standard_normal((5, 3)))
    value, found = value_and_grad(loss)(p, x)
    assert found.keys() == p.keys()
    leaf = {"w": p["w"].detach().requires_grad_(), "parts": [t.detach().requires_grad_() for t in p["parts"]]}
    again = loss(leaf, x)
    again.backward()
    np.testing.assert_allclose(value.item(), again.item())
    np.testing.assert_allclose(found["w"].numpy(), leaf["w"].grad.numpy())
    for a, b in zip(found["parts"], leaf["parts"], strict=True):
        np.testing.assert_allclose(a.numpy(), b.grad.numpy())


def test_several_arguments_and_a_second_result() -> None:
    a, b = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    da, db = grad(lambda a, b: (a * b).sum(), (0, 1))(a, b)
    assert (da.tolist(), db.tolist()) == ([3, 4], [1, 2])
    found, text = grad(lambda a: ((a * a).sum(), "more"), has_aux=True)(a)
    assert (found.tolist(), text) == ([2, 4], "more")
    assert grad(lambda a, b: a.sum(), 1)(a, b).tolist() == [0, 0]


def test_the_same_tensor_twice_is_two_variables() -> None:
    a = Tensor([2.0])
    da, db = grad(lambda a, b: (a * a * b).sum(), (0, 1))(a, a)
    assert (da.item(), db.item()) == (8, 4)


def test_nested_gradients() -> None:
    cube: Callable[[Tensor], Tensor] = lambda x: x**3  # noqa: E731
    x = Tensor(2.0)
    assert [f(x).item() for f in (grad(cube), grad(grad(cube)), grad(grad(grad(cube))))] == [12, 12, 6]


def test_products_with_the_jacobian_agree() -> None:
    draw = np.random.default_rng(0)

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.sin() @ y).softmax(1), (x * x).sum(0)

    x, y, u, v, s, t = (Tensor(draw.standard_normal(n)) for n in ((2, 3), (3, 4), (2, 4), (3,), (2, 3), (3, 4)))
    value, pull = vjp(function, x, y)
    gx, gy = pull((u, v))
    again, slopes = jvp(function, (x, y), (s, t))
    for a, b in zip(value, again, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy())
    left = (gx * s).sum() + (gy * t).sum()
    np.testing.assert_allclose(left.item(), ((slopes[0] * u).sum() + (slopes[1] * v).sum()).item(), rtol=1e-10)
    step = 1e-6
    moved = function(x + s * step, y + t * step)
    for a, b, slope in zip(moved, value, slopes, strict=True):
        np.testing.assert_allclose(slope.numpy(), (a - b).numpy() / step, atol=1e-4)


def test_jacobians() -> None:
    a = np.random.default_rng(1).standard_normal((4, 3))
    x = Tensor(np.array([0.1, 0.2, 0.3]))
    found = jacobian(lambda x: Tensor(a) @ x)(x)
    np.testing.assert_allclose(found.numpy(), a)
    assert jacobian(lambda x: x.reshape(1, 3))(x).shape == (1, 3, 3)
    assert jacobian(lambda x: x[:0])(x).shape == (0, 3)


def test_second_derivatives() -> None:
    a = np.random.default_rng(2).standard_normal((4, 4))
    x = Tensor(np.arange(4.0))
    found = hessian(lambda x: x @ Tensor(a) @ x)(x)
    np.testing.assert_allclose(found.numpy(), a + a.T)
    assert hessian(lambda x: x.sum())(x).numpy().tolist() == np.zeros((4, 4)).tolist()


def test_under_jit() -> None:
    step = jit(lambda p, x: value_and_grad(loss)(p, x))
    p, x = parameters(), Tensor(np.random.default_rng(4).standard_normal((5, 3)))
    want = value_and_grad(loss)(p, x)[1]["w"].numpy()
    for _ in range(4):
        np.testing.assert_allclose(step(p, x)[1]["w"].numpy(), want)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: grad(lambda x: x)(Tensor([1.0, 2.0])), GradientError,
         r"grad: the function returns shape \(2,\) instead of one number\. Reduce it, or use jacobian\."),
        (lambda: grad(lambda x: 3)(Tensor(1.0)), GradientError, "the function returns a int instead of one number"),
        (lambda: grad(lambda x: x)(3.0), DTypeError, "grad: a float has no gradient. Give tensors"),
        (lambda: grad(lambda x: x, 2)(Tensor(1.0)), ShapeError, "grad: argument 2 of 1 does not exist. Count from 0."),
        (lambda: jvp(lambda x: x, (Tensor([1.0]),), (Tensor([1.0, 2.0]),)), ShapeError,
         r"jvp: tangents of shapes \(2,\) instead of \(1,\)"),
        (lambda: vjp(lambda x: x, Tensor([1.0]))[1](Tensor([1.0, 2.0])), ShapeError, "vjp: gradients of shapes"),
    ],
)  # fmt: skip
def test_mistakes(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_it_is_found_by_name() -> None:
    assert functional.grad is grad

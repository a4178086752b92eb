"""Gradients of your own, and gradients that compute their function again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Context, GradientError, KernmillError, ShapeError, Tensor, jit
from kernmill.captures import Jit
from kernmill.functional import checkpoint, custom_gradient, grad, hessian, jvp, vmap

X = Tensor([0.4, 1.6, -2.2])
LEAF = Tensor([1.0, 2.0, 3.0], requires_grad=True)


@custom_gradient
def rounded(x: Tensor) -> Any:
    return x.detach().round(), lambda g: g * 2


@custom_gradient
def exponential(x: Tensor) -> Any:
    y = x.exp()
    return y, lambda g: g * y


@custom_gradient
def two(a: Tensor, b: Tensor, n: int) -> Any:
    return (a * b, a + b), lambda g: (g[0] * b * n, g[0] * a + g[1] * 5, None)


def test_the_gradient_is_that_of_the_function(device: str) -> None:
    with Context(DEVICE=device):
        x = Tensor([0.4, 1.6, -2.2], requires_grad=True)
        rounded(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2, 2, 2]
        found = grad(lambda x: (rounded(x) * x).sum())(X)
        np.testing.assert_allclose(found.numpy(), np.round(X.numpy()) + 2 * X.numpy(), rtol=1e-6)


def test_several_arguments_and_results() -> None:
    value = lambda a, b: two(a, b, 7)[0] * 2 + two(a, b, 7)[1]  # noqa: E731
    assert [t.item() for t in grad(value, (0, 1))(Tensor(3.0), Tensor(4.0))] == [56, 11]


def test_higher_derivatives_and_other_functions() -> None:
    x = Tensor(0.7)
    for f in (exponential, grad(exponential), grad(grad(exponential))):
        np.testing.assert_allclose(f(x).item(), np.exp(0.7), rtol=1e-6)
    np.testing.assert_allclose(jvp(exponential, (x,), (Tensor(2.0),))[1].item(), 2 * np.exp(0.7), rtol=1e-6)
    np.testing.assert_allclose(vmap(grad(exponential))(X).numpy(), np.exp(X.numpy()), rtol=1e-6)
    np.testing.assert_allclose(grad(lambda x: vmap(exponential)(x).sum())(X).numpy(), np.exp(X.numpy()), rtol=1e-6)
    fast = jit(lambda x: grad(lambda x: exponential(x).sum())(x))
    for _ in range(3):
        np.testing.assert_allclose(fast(X).numpy(), np.exp(X.numpy()), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: custom_gradient(lambda x: x)(X), GradientError, "must return a pair: its value, and a function"),
        (lambda: custom_gradient(lambda x: (x * LEAF, lambda g: g))(X), GradientError, "is not an argument. Pass it"),
        (lambda: custom_gradient(lambda x: (x, lambda g: g.sum()))(X), ShapeError,
         r"a gradient of shape \(\) for an argument of shape \(3,\). Return one of the argument's shape."),
        (lambda: custom_gradient(lambda x: (x, lambda g: (g, g)))(X), ShapeError, "Return one for each argument"),
        (lambda: custom_gradient(lambda x: (x, lambda g: g * g[0].item()))(X), KernmillError, "reads values"),
    ],
)  # fmt: skip
def test_mistakes(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


# --- checkpoint
def step(wrap: Callable[..., Any], weights: list[Tensor]) -> Callable[[Tensor], Any]:
    def block(x: Tensor, first: int) -> Tensor:
        for w in weights[first : first + 4]:
            x = (x @ w).gelu()
        return x

    def run(x: Tensor) -> Any:
        for w in weights:
            w.grad = None
        for first in range(0, len(weights), 4):
            x = wrap(block)(x, first)
        loss = x.square().mean()
        loss.backward()
        return loss, [w.grad for w in weights]

    return run


def test_less_memory_and_the_same_gradients(device: str) -> None:
    draw, rows = np.random.default_rng(0), 16 if device == "PYTHON" else 512
    with Context(DEVICE=device):
        weights = [Tensor(draw.standard_normal((8, 8)).astype(np.float32), requires_grad=True) for _ in range(16)]
        x = Tensor(draw.standard_normal((rows, 8)).astype(np.float32))
        found, kept = [], []
        for wrap in (lambda f: f, checkpoint):
            run = Jit(step(wrap, weights), runs_first=False)
            found.append([t.numpy().copy() for t in run(x)[1]])
            kept.append(run.memory().kept_bytes)
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
        assert kept[1] < 0.5 * kept[0]


def test_second_derivatives_of_what_is_computed_again() -> None:
    f = lambda v: (v.sin() * v).sum()  # noqa: E731
    np.testing.assert_allclose(hessian(checkpoint(f))(X).numpy(), hessian(f)(X).numpy(), atol=1e-6)


def test_forms_and_what_has_no_gradient() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    found = checkpoint(lambda p, n: {"a": p["x"] * n, "b": Tensor([1]), "c": 3})({"x": x}, 2)
    found["a"].sum().backward()
    assert (found["c"], found["b"].item()) == (3, 1)
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]

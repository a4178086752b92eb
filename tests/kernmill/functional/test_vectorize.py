"""vmap: the same as a loop over the batch, with gradients inside and outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Context, DTypeError, KernmillError, ShapeError, Tensor, fft, jit, linalg, no_grad
from kernmill.functional import grad, hessian, vmap

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...], Any, int]


def draw(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(sum(shape)).standard_normal(shape))


def set_first(a: Tensor) -> Tensor:
    b = a.clone()
    b[0] = a[1].sum()
    return b


def gram(a: Tensor) -> Tensor:
    return linalg.cholesky(a @ a.T + Tensor(np.eye(3)))


def pairs(a: Tensor) -> Tensor:
    found: Tensor = vmap(lambda row, first: row * first, (0, None))(a, a[0])
    return found


CASES: dict[str, Case] = {
    "elementwise": (lambda a: (a * 2 + 1).exp(), ((4, 3, 5),), 0, 0),
    "product, softmax": (lambda a, w: (a @ w).relu().softmax(1), ((4, 3, 5), (5, 2)), (0, None), 0),
    "the second argument": (lambda a, w: a @ w, ((3, 5), (5, 2, 4)), (None, 2), 0),
    "to one number": (lambda a: a.sum(0).max(), ((4, 3, 5),), 1, 0),
    "axes in and out": (lambda a: a[1:].flip(0).pad((1, 2)), ((4, 3, 5),), -1, 1),
    "lookup in the batch": (lambda a: a[:, Tensor([2, 0])], ((4, 3, 5),), 0, 0),
    "index from the batch": (lambda a: a.gather(1, a.argsort(1)), ((4, 3, 5),), 0, 0),
    "lookup by the batch": (lambda a: draw(7, 2)[a.argmax(1)], ((4, 3, 5),), 0, 0),
    "scan and sort": (lambda a: a.cumsum(0).sort(1)[0], ((4, 3, 5),), 0, 0),
    "write": (set_first, ((4, 3, 5),), 0, 0),
    "convolution": (lambda a: a.conv2d(draw(2, 1, 2, 2)).max_pool2d(2), ((4, 2, 1, 5, 5),), 0, 0),
    "factor": (gram, ((4, 3, 5),), 0, 0),
    "interleaved factors": (lambda a: linalg.cholesky(a @ a.mT + Tensor(np.eye(3))), ((2, 9, 3, 5),), 0, 0),
    "Fourier transforms": (lambda a: fft.rfft(a).real, ((4, 3, 8),), 0, 0),
    "interleaved transforms": (lambda a: fft.rfft(a).imag, ((2, 9, 8),), 0, 0),
    "nested": (pairs, ((4, 3, 5),), 0, 0),
    "gradient inside": (grad(lambda a: (gram(a) ** 2).sum()), ((4, 3, 5),), 0, 0),
    "second derivatives": (hessian(lambda v: (v**3).sum() * v[0]), ((4, 3),), 0, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_as_a_loop(name: str) -> None:
    function, shapes, in_axes, out_axis = CASES[name]
    given = [draw(*shape) for shape in shapes]
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(given)
    count = next(t.shape[axis] for t, axis in zip(given, axes, strict=True) if axis is not None)

    def entry(i: int) -> list[Tensor]:
        return [t if a is None else Tensor(np.take(t.numpy(), i, a)) for t, a in zip(given, axes, strict=True)]

    want = np.stack([function(*entry(i)).numpy() for i in range(count)], out_axis)
    found = vmap(function, in_axes, out_axis)(*given)
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-9, atol=1e-10)


def test_on_each_device(device: str) -> None:
    with Context(DEVICE=device):
        x, w = draw(3, 4), draw(4, 2)
        found = vmap(grad(lambda w, a: (a @ w).tanh().square().sum()), (None, 0))(w, x)
        for i in range(3):
            want = grad(lambda w, i=i: (x[i] @ w).tanh().square().sum())(w)
            np.testing.assert_allclose(found[i].numpy(), want.numpy(), rtol=1e-9)


def test_gradients_flow_through() -> None:
    x, w = draw(4, 3, 5), draw(3, 3)
    one = lambda a, w: (gram(a) * w).relu().sum()  # noqa: E731
    dx, dw = grad(lambda x, w: vmap(one, (0, None))(x, w).sum(), (0, 1))(x, w)
    each = [grad(one, (0, 1))(Tensor(a), w) for a in x.numpy()]
    np.testing.assert_allclose(dx.numpy(), np.stack([a.numpy() for a, _ in each]), rtol=1e-9)
    np.testing.assert_allclose(dw.numpy(), sum(b.numpy() for _, b in each), rtol=1e-9)
    square = lambda v: gram(v.reshape(3, 1)).sum()  # noqa: E731
    v = draw(2, 3)
    found = hessian(lambda v: vmap(square)(v).sum())(v).numpy()
    for i in range(2):
        np.testing.assert_allclose(found[i, :, i], hessian(square)(v[i]).numpy(), atol=1e-9)


def test_a_leaf_outside_gets_its_gradient() -> None:
    w = Tensor([2.0, 3.0], requires_grad=True)
    vmap(lambda a: (a * w).sum())(Tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [4, 6]


def test_no_grad_inside_stays() -> None:
    def constant(a: Tensor) -> Tensor:
        with no_grad():
            return a * 3

    x = draw(2, 3)
    found = grad(lambda x: vmap(lambda a: (a * constant(a)).sum())(x).sum())(x)
    np.testing.assert_allclose(found.numpy(), 3 * x.numpy())


def test_captured_outside_and_inside() -> None:
    twice = jit(lambda a: a * 2)
    fast = jit(lambda x: vmap(lambda a: twice(a).sum())(x))
    for _ in range(3):
        assert fast(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [6, 14]


def test_forms() -> None:
    found = vmap(lambda p, s: {"a": p["x"] + p["y"], "b": (s, p["y"])}, ({"x": 0, "y": None}, None))(
        {"x": Tensor([1, 2]), "y": Tensor(10)}, 5
    )
    assert found["a"].tolist() == [11, 12]
    assert (found["b"][0], found["b"][1].tolist()) == (5, [10, 10])
    assert vmap(lambda a, b: a + b)(Tensor([1, 2]), b=Tensor([3, 4])).tolist() == [4, 6]


X, W = draw(4, 3), Tensor(np.zeros((5, 2)))
_READS = "vmap: the function reads values .* Use where\\(\\), or write a Python loop over the batch."


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: vmap(lambda a: a if a.sum() > 0 else -a)(X), KernmillError, _READS),
        (lambda: vmap(lambda a: a.exp().numpy())(X), KernmillError, _READS),
        (lambda: vmap(lambda a, b: a)(X, W), ShapeError, "mapped axes of sizes 4 and 5, in arguments of shapes"),
        (lambda: vmap(lambda a: a, None)(X), ShapeError, "vmap: no argument is mapped. Give a tensor"),
        (lambda: vmap(lambda a: a, 2)(X), ShapeError, r"vmap: axis 2 of an argument of shape \(4, 3\) does not exist"),
        (lambda: vmap(lambda a: a, (0, 0))(X), ShapeError, "in_axes has 2 entries for 1 arguments"),
        (lambda: vmap(lambda a: a, ({"a": 0},))(X), ShapeError, "vmap: axes {'a': 0} for a Tensor. Give an int"),
        (lambda: vmap(lambda a: "x")(X), DTypeError, "vmap: the function returns a str. Return tensors"),
        (lambda: vmap(lambda a: a, 0, None)(X), ShapeError, "out_axes is None for a result that differs"),
        (lambda: vmap(lambda a: a, 0, 4)(X), ShapeError, "vmap: out_axes 4 of a result of shape"),
        (lambda: vmap(lambda a: W.assign(W + a[0]))(X), ShapeError, "assigns to a tensor of shape .5, 2. outside"),
        (lambda: vmap(3), DTypeError, "vmap: a int cannot be called"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_mistakes(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
    assert W.tolist() == np.zeros((5, 2)).tolist()

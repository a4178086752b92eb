"""scan, while_loop and cond: captured they are what the plain Python loops are, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, GradientError, KernmillError, ShapeError, Tensor, jit, no_grad
from kernmill.functional import cond, grad, scan, vmap, while_loop

DRAW = np.random.default_rng(0)
WEIGHT, ENTRIES = DRAW.standard_normal((3, 3)) / 2, DRAW.standard_normal((5, 2, 3))


def recurrent(w: Tensor) -> Callable[[Tensor, Tensor], Any]:
    def step(h: Tensor, x: Tensor) -> Any:
        h = (x + h @ w).tanh()
        return h, {"h": h, "twice": h * 2}

    return step


@pytest.mark.parametrize("reverse", [False, True])
def test_a_captured_scan_is_the_loop(reverse: bool) -> None:
    w, h0 = Tensor(WEIGHT), Tensor(np.zeros((2, 3)))
    fast = jit(lambda h, xs: scan(recurrent(w), h, xs, reverse=reverse))
    h, found = np.zeros((2, 3)), []
    for x in ENTRIES[::-1] if reverse else ENTRIES:
        h = np.tanh(x + h @ WEIGHT)
        found.append(h)
    want = np.stack(found[::-1] if reverse else found)
    plain = scan(recurrent(w), h0, Tensor(ENTRIES), reverse=reverse)
    for last, ys in (plain, *(fast(h0, Tensor(ENTRIES)) for _ in range(3))):
        np.testing.assert_allclose(last.numpy(), h, rtol=1e-9)
        np.testing.assert_allclose(ys["h"].numpy(), want, rtol=1e-9)
        np.testing.assert_allclose(ys["twice"].numpy(), 2 * want, rtol=1e-9)
    assert fast.cache_info().captures == 1


def test_it_does_not_unroll() -> None:
    w, h0 = Tensor(WEIGHT), Tensor(np.zeros((2, 3)))
    kernels = []
    for rounds in (4, 40):
        fast = jit(lambda h, xs: scan(recurrent(w), h, xs))
        for _ in range(2):
            fast(h0, Tensor(np.zeros((rounds, 2, 3))))
        kernels.append(fast.cache_info().kernels)
    assert kernels[0] == kernels[1]


def test_gradients_of_a_captured_scan(device: str) -> None:
    w, h0, xs = Tensor(WEIGHT, requires_grad=True), Tensor(WEIGHT[:2]), Tensor(ENTRIES)

    def loss(h: Tensor, xs: Tensor) -> Tensor:
        last, ys = scan(recurrent(w), h, xs)
        found: Tensor = (ys["h"] * ys["twice"]).sum() + last.sum()
        return found

    def step(h: Tensor, xs: Tensor) -> Any:
        w.grad = None
        loss(h, xs).backward()
        return w.grad

    fast, inputs = jit(step), jit(lambda h, xs: grad(loss, (0, 1))(h, xs))
    want = [step(h0, xs).numpy(), *(t.numpy() for t in grad(loss, (0, 1))(h0, xs))]
    for _ in range(3):
        for found, wanted in zip([fast(h0, xs), *inputs(h0, xs)], want, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-8)


def test_carries_of_ints_and_without_xs() -> None:
    def halve(carry: dict[str, Tensor], _: None) -> Any:
        return {"i": carry["i"] + 1, "v": carry["v"] * 0.5 + carry["i"]}, carry["i"]

    fast = jit(lambda x: scan(halve, {"i": Tensor(0), "v": x}, length=4))
    for _ in range(3):
        last, counts = fast(Tensor([16.0]))
        assert (last["i"].item(), last["v"].item(), counts.tolist()) == (4, 5.25, [0, 1, 2, 3])
    slope = jit(lambda x: grad(lambda x: scan(halve, {"i": Tensor(0), "v": x}, length=4)[0]["v"].sum())(x))
    assert [slope(Tensor([16.0])).item() for _ in range(3)] == [0.0625] * 3


def test_under_other_functions() -> None:
    total = lambda x: scan(lambda c, x: (c + x, None), Tensor(0.0), x)[0]  # noqa: E731
    fast = jit(lambda x: vmap(total)(x))
    for _ in range(3):
        assert fast(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [3, 7]
    assert scan(lambda c, x: (c, x), Tensor(1.0), Tensor(np.zeros((0, 2))))[1] is None


def test_a_loop_of_as_many_rounds_as_it_takes() -> None:
    double: Any = lambda x: while_loop(lambda v: (v < 100).all(), lambda v: v * 2, x)  # noqa: E731
    fast = jit(double)
    for start, end in ((1.0, 128), (3.0, 192), (200.0, 200), (7.0, 112), (1.0, 128)):
        assert fast(Tensor([start])).item() == double(Tensor([start])).item() == end


def test_a_choice(device: str) -> None:
    choose: Any = lambda x: cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, x)  # noqa: E731
    fast = jit(choose)
    for value, wanted in ((1.0, 2), (-3.0, 3), (2.0, 4), (-5.0, 5)):
        assert fast(Tensor([value])).item() == choose(Tensor([value])).item() == wanted
    assert vmap(choose)(Tensor([[1.0], [-3.0]])).tolist() == [[2], [3]]
    assert cond(True, lambda: 1, lambda: 2) == 1


def xs() -> Tensor:
    return Tensor(ENTRIES)


def h0() -> Tensor:
    return Tensor(np.zeros((2, 3)))


def slope() -> Tensor:
    return Tensor([2.0], requires_grad=True)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: scan(lambda c, x: c, h0(), xs()), ShapeError, "Return a pair: the carry, and y or None"),
        (lambda: scan(lambda c, x: (c.sum(), x), h0(), xs()), ShapeError, "the carry must keep form, shape and dtype"),
        (lambda: scan(lambda c, x: (c, x), h0()), ShapeError, "scan: xs of shapes nothing with length=None."),
        (lambda: scan(lambda c, x: (c, x), h0(), (xs(), h0())), ShapeError, "whose first axis has one known size"),
        (lambda: scan(lambda c, x: (c, x), 3.0, xs()), DTypeError, "scan: init has a float. Give tensors"),
        (lambda: jit(lambda x: scan(lambda c, x: (c if c.sum() > 0 else x, x), h0(), x))(xs()), KernmillError,
         "scan: the body reads values"),
        (lambda: jit(lambda x: scan(lambda c, x: (c + Tensor.rand(2, 3), x), h0(), x))(xs()), KernmillError,
         "scan: the body draws random numbers"),
        (lambda: jit(lambda x: while_loop(lambda v: v, lambda v: v, x))(h0()), ShapeError,
         "while_loop: the condition is"),
        (lambda: jit(lambda x: while_loop(lambda v: v.sum() < 9, lambda v: v * slope(), x))(Tensor([1.0])),
         GradientError, "while_loop: in a captured function it has no gradient"),
        (lambda: cond(xs() > 0, lambda: 1, lambda: 2), ShapeError, "cond: the predicate is .5, 2, 3."),
    ],
)  # fmt: skip
def test_mistakes(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_no_history_is_kept_without_gradients() -> None:
    w, h = slope(), h0()
    with no_grad():
        fast = jit(lambda xs: scan(lambda c, x: (c * w.sum() + x, None), h, xs)[0])
        for _ in range(2):
            np.testing.assert_allclose(fast(xs()).numpy(), sum(ENTRIES[i] * 2.0 ** (4 - i) for i in range(5)))

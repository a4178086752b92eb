"""What the recording of a loop has to tell apart: results that are arguments, equal results, rows that are aligned."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor, jit
from kernmill.functional import grad, jvp, scan, while_loop


def test_results_may_be_arguments_and_each_other() -> None:
    def body(carry: dict[str, Tensor], x: Tensor) -> object:
        return {"a": carry["b"], "b": x}, (carry["a"], carry["a"], x)

    start = {"a": Tensor([1.0]), "b": Tensor([2.0])}
    fast = jit(lambda start, xs: scan(body, start, xs))
    for _ in range(3):
        last, ys = fast(start, Tensor([[3.0], [4.0], [5.0]]))
        assert [last["a"].item(), last["b"].item()] == [4, 5]
        assert [y.flatten().tolist() for y in ys] == [[1, 2, 3], [1, 2, 3], [3, 4, 5]]


def test_values_from_outside_that_are_not_computed_yet() -> None:
    weight = Tensor([2.0], requires_grad=True)

    def total(xs: Tensor) -> Tensor:
        scale = weight * 3 + xs.sum()
        found: Tensor = scan(lambda c, x: (c + x * scale, None), Tensor([0.0]), xs)[0].sum()
        return found

    fast = jit(lambda xs: grad(total)(xs))
    xs = Tensor([[1.0], [2.0]])
    for _ in range(3):
        np.testing.assert_allclose(fast(xs).numpy(), grad(total)(xs).numpy(), rtol=1e-6)


def test_two_values_in_a_loop_of_unknown_length() -> None:
    swap = jit(lambda a, b: while_loop(lambda v: v[0].sum() < 20, lambda v: (v[1], v[0] + v[1]), (a, b)))
    for _ in range(3):
        a, b = swap(Tensor([1.0]), Tensor([1.0]))
        assert (a.item(), b.item()) == (21, 34)


@pytest.mark.parametrize("device", ["LLVM"])
def test_gradients_of_gradients(device: str) -> None:
    """Named regression: a captured scan had first derivatives only."""
    xs = Tensor(np.linspace(-1.0, 1.0, 3))

    def loss(w: Tensor) -> Tensor:
        scale = w * w.sum()  # the body reads it, and what it is computed from
        last, ys = scan(lambda c, x: ((c * w).tanh() + x * scale, (c * scale).sum()), w[:1], xs.reshape(3, 1))
        found: Tensor = last.sum() + (ys * ys).sum()
        return found

    def second(w: Tensor) -> Tensor:
        return grad(lambda v: grad(loss)(v).square().sum())(w)  # type: ignore[no-any-return]

    def along(w: Tensor) -> Tensor:
        return jvp(loss, (w,), (w,))[1]  # type: ignore[no-any-return]

    w = Tensor(np.array([0.7]))
    for function in (second, along):
        fast = jit(function)
        for _ in range(2):
            np.testing.assert_allclose(fast(w).numpy(), function(w).numpy(), rtol=1e-10)

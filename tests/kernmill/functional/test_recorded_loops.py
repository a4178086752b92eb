"""What the recording of a loop has to tell apart: results that are arguments, equal results, rows that are aligned."""

from __future__ import annotations

import numpy as np

from kernmill import Tensor, jit
from kernmill.functional import grad, scan, while_loop


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

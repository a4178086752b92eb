"""The work of the compiler is linear in the number of nodes: steps of Python are counted, nothing is timed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, cat
from kernmill.compiler import Draft
from kernmill.ir import GraphPlan, Kernel

X = np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)


def sines(n: int) -> list[Tensor]:
    """Steps of a solver, in one elementwise expression."""
    y = x = Tensor(X)
    for _ in range(n):
        y = (y * 1.001).sin() + x
    return [y]


def means(n: int) -> list[Tensor]:
    """A reduction in each step."""
    y = Tensor(X)
    for _ in range(n):
        y = y - y.mean(1, keepdim=True) + 1
    return [y]


def products(n: int) -> list[Tensor]:
    """A kernel for each step."""
    y, w = Tensor(X), Tensor(X / 4)
    for _ in range(n):
        y = (y @ w).tanh()
    return [y]


def gradient(n: int) -> list[Tensor]:
    """Backward through a chain; its intermediates are read twice."""
    y = x = Tensor(X, requires_grad=True)
    for _ in range(n):
        y = y.sin()
    return list(y.sum().gradient(x))


def diamonds(n: int) -> list[Tensor]:
    """A graph with 2**n paths."""
    y = Tensor(X)
    for _ in range(n):
        y = (y * 0.5).sin() + (y * 0.3).cos()
    return [y]


def shared_weight(n: int) -> list[Tensor]:
    """The gradient of a weight that every step reads: a sum of n products."""
    w = Tensor(X / 4, requires_grad=True)
    y = Tensor(X)
    for _ in range(n):
        y = (y @ w).tanh()
    return list(y.sum().gradient(w))


def joined(n: int) -> list[Tensor]:
    """Many sources side by side."""
    return [cat([Tensor(X) for _ in range(n)])]


def steps_of(make: Callable[[int], list[Tensor]], n: int) -> int:
    """Lines of Python that a cold `realize` of the graph runs, each turn of a loop in a line counted."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    tensors = make(n)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        Tensor.realize(*tensors)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("make", "n"),
    [(sines, 200), (means, 150), (products, 60), (gradient, 120), (diamonds, 60), (shared_weight, 70), (joined, 300)],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_twice_the_steps_take_at_most_twice_the_work(make: Callable[[int], list[Tensor]], n: int) -> None:
    with Context(DEVICE="NULL"):
        steps_of(make, n // 2)  # kernels that all lengths share, and what is compiled of our own rules
        short, long = steps_of(make, n), steps_of(make, 2 * n)
    assert long <= 2.3 * short, (short, long)


def test_a_chain_of_10_000_steps_has_the_values_of_numpy() -> None:
    y, want = Tensor(X), X
    for _ in range(10_000):
        y = y * 0.5 + 1
        want = want * np.float32(0.5) + np.float32(1)
    assert np.array_equal(y.numpy(), want)


def test_the_gradient_of_2_000_steps_has_the_values_of_numpy() -> None:
    y = x = Tensor(X, requires_grad=True)
    value, slope = X.astype(np.float64), np.ones((8, 8))
    for _ in range(2_000):
        y = y.sin()
        slope, value = slope * np.cos(value), np.sin(value)
    (found,) = y.sum().gradient(x)
    np.testing.assert_allclose(found.numpy(), slope, rtol=2e-3, atol=1e-12)


def test_cat_of_3_000_tensors_and_its_gradient() -> None:
    values = np.arange(3_000 * 6, dtype=np.float32).reshape(3_000, 2, 3)
    pieces = [Tensor(value, requires_grad=True) for value in values]
    whole = cat(pieces)
    assert np.array_equal(whole.numpy(), values.reshape(6_000, 3))
    found = (whole * whole).sum().gradient(pieces[0], pieces[1_700], pieces[-1])
    for gradient, value in zip(found, values[[0, 1_700, -1]], strict=True):
        assert np.array_equal(gradient.numpy(), 2 * value)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("count", [15, 16, 17, 33, 300])
def test_cat_and_stack_of_many_are_those_of_numpy(count: int, axis: int) -> None:
    rng = np.random.default_rng(count)
    values = [rng.standard_normal((2, 3, 2)).astype(np.float32) for _ in range(count)]
    assert np.array_equal(cat([Tensor(v) for v in values], axis).numpy(), np.concatenate(values, axis))
    first, *others = (Tensor(v) for v in values)
    assert np.array_equal(first.stack(*others, axis=axis).numpy(), np.stack(values, axis))


def test_a_long_chain_of_equal_steps_has_few_different_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    planning: Any = importlib.import_module("kernmill.runtime.plans.planning")
    plans: list[GraphPlan] = []
    plan_graph = planning.plan_graph

    def noted(draft: Draft) -> Draft:
        plans.append(plan_graph(draft).plan)
        return draft

    monkeypatch.setattr(planning, "plan_graph", noted)
    Tensor.realize(*means(801))
    kernels = [item for plan in plans for item in plan.items if isinstance(item, Kernel)]
    assert len(kernels) > 20
    assert len({kernel.key for kernel in kernels}) <= 4


@pytest.mark.parametrize("count", [64, 65, 200])
def test_the_gradient_of_a_shared_weight_is_the_sum_of_all_steps(count: int) -> None:
    rng = np.random.default_rng(count)
    inputs = rng.standard_normal((count, 4, 8)).astype(np.float32)
    w = Tensor(X, requires_grad=True)
    total = sum(((Tensor(x) @ w) * Tensor(x)).sum() for x in inputs)
    assert isinstance(total, Tensor)
    (found,) = total.gradient(w)
    np.testing.assert_allclose(found.numpy(), np.einsum("nbi,nbj->ij", inputs, inputs), rtol=1e-4, atol=1e-3)

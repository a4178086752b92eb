"""The work of the compiler is linear in the number of nodes: steps of Python are counted, nothing is timed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor

X = np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)
_plans: Any = importlib.import_module("kernmill.runtime.plan").plans


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
    ("make", "n"), [(sines, 200), (means, 150), (products, 60), (gradient, 120), (diamonds, 60)], ids=lambda v: str(v)
)
def test_twice_the_steps_take_at_most_twice_the_work(make: Callable[[int], list[Tensor]], n: int) -> None:
    with Context(DEVICE="NULL"):
        steps_of(make, n // 2)  # kernels that all lengths share, and what is compiled of our own rules
        short, long = steps_of(make, n), steps_of(make, 2 * n)
    assert long <= 2.3 * short, (short, long)

"""Sizes that differ from call to call: they compute, and what Python would decide by their value is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernmill import ShapeError, Tensor, Variable, jit
from kernmill.size import SymbolicSize, as_node, shown

N = Variable("n", 2, 9)
X = np.arange(24, dtype=np.float32).reshape(12, 2)
n = SymbolicSize(N.uop)


@pytest.mark.parametrize(
    "decide",
    [
        lambda p, x: 1 if p > 3 else 0, lambda p, x: 1 if p == 3 else 0, lambda p, x: min(p, 5), lambda p, x: max(p, 3),
        lambda p, x: [*range(p)], lambda p, x: int(p), lambda p, x: float(p), lambda p, x: {p: 1},
        lambda p, x: [1, 2, 3][p], lambda p, x: 1 if p != 4 else 0, lambda p, x: p <= 5, lambda p, x: p * 0.5,
        lambda p, x: 1 / p, lambda p, x: p in (1, 5), lambda p, x: 1 if x[:p].shape[0] == 3 else 0,
        lambda p, x: len(x[:p]), lambda p, x: 1 if x[:p].numel() > 6 else 0, lambda p, x: x[:p].shape == (3, 2),
        lambda p, x: bool(p - 3),
        lambda p, x: "abc"[:p], lambda p, x: 1 if p < 3.5 else 0, lambda p, x: x.sum(p - 2), lambda p, x: round(p),
    ],
)  # fmt: skip
def test_decisions_are_refused(decide: Callable[[Any, Any], Any]) -> None:
    """Named regression: a bare UOp was truthy, compared by identity, and the answer held for every value."""
    step = jit(lambda x, p: decide(p, x))
    for _ in range(2):
        with pytest.raises((ShapeError, TypeError)) as found:
            step(Tensor(X), N.bind(4))
        assert found.type is TypeError or "changes per call" in str(found.value)


def test_the_sentence() -> None:
    with pytest.raises(ShapeError) as found:
        bool(n > 3)
    assert str(found.value) == (
        "n > 3: this symbolic size changes per call of the captured function, from 2 to 9, and the function is "
        "traced once for all of them. Decide outside of it, give it a plain int (a capture for each), or compare "
        "Tensor(n)."
    )
    with pytest.raises(ShapeError, match=r"^\(n \* 2\) \+ 2 as an int: "):
        range(2 * (n + 1))


def test_what_the_bounds_decide() -> None:
    assert n < 10
    assert n >= 2
    assert not n > 9
    assert n != 12
    assert n
    assert min(n, 20) is n
    assert max(n, -1) is n
    assert n == n + 0
    assert n < n + 1
    assert n - n == 0
    assert isinstance(n - n, int)
    assert n is not None
    assert n != "n"
    assert (n == None) is False  # noqa: E711


@pytest.mark.parametrize(
    "rule",
    [
        lambda a: a + 3, lambda a: 3 + a, lambda a: a - 1, lambda a: 20 - a, lambda a: a * 4, lambda a: 4 * a,
        lambda a: a // 2, lambda a: a % 3, lambda a: 100 // a, lambda a: 100 % a, lambda a: -a, lambda a: +a,
        lambda a: a * a + a // 3, lambda a: np.int64(3) * a, lambda a: a - np.int32(2),
    ],
)  # fmt: skip
def test_arithmetic(rule: Callable[[Any], Any]) -> None:
    for value in (2, 5, 9):
        assert rule(n).number({"n": value}) == rule(value)


def test_a_divisor_that_may_be_0() -> None:
    with pytest.raises(ZeroDivisionError, match=r"8 // n - 2: the right side may be 0\."):
        8 // (n - 2)


def test_sizes_and_nodes() -> None:
    assert shown(3) == 3
    assert as_node(3) == 3
    assert as_node(n) is N.uop
    assert isinstance(shown(N.uop), SymbolicSize)


@pytest.mark.parametrize(
    "rule",
    [
        lambda p, x: p * x[0], lambda p, x: x[0] * p, lambda p, x: p - x[0], lambda p, x: (x[0] < p).sum(),
        lambda p, x: (p > x[0]).sum(), lambda p, x: x[p], lambda p, x: x[p : p + 1], lambda p, x: x[:p].mean(0),
        lambda p, x: p / (x[0] + 1), lambda p, x: x[0] // p, lambda p, x: x[:p].sum() / x[:p].shape[0],
        lambda p, x: x[p - 2 :: 1][:2].sum(), lambda p, x: x[: p + 1].reshape((p + 1) * 2).sum(),
        lambda p, x: x[: p + 1].sum() + (x.numel() - p), lambda p, x: x.split([p, 12 - p])[1].sum(0),
        lambda p, x: x.shrink([(p, 12), None]).sum(), lambda p, x: (p, [x[0] + p, p * 2], {"a": p - 1}),
        lambda p, x: p, lambda p, x: x[:p].shape, lambda p, x: x[:p].shape[0] * x.shape[1],
    ],
)  # fmt: skip
def test_captured_is_what_it_is_without(rule: Callable[[Any, Any], Any]) -> None:
    """Named regressions: p * x[0] failed; a returned size was that of the capture."""
    step = jit(lambda x, p: rule(p, x))
    x, plain = Tensor(X).realize(), Tensor(X)
    for value in (3, 2, 9, 5, 5, 4):
        same(step(x, N.bind(value)), rule(value, plain))
    assert step.cache_info().captures == 1


def same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, Tensor):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)
    elif isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
    elif isinstance(wanted, dict):
        same(list(found.items()), list(wanted.items()))
    else:
        assert found == wanted


def test_a_size_that_would_stay_behind_is_refused() -> None:
    """Named regression: the next call would have found the size of this one."""
    x, box = Tensor(X).realize(), SimpleNamespace(kept=None)

    def keep(x: Tensor, p: Any) -> Tensor:
        box.kept = p
        return x[:p].sum()

    with pytest.raises(ShapeError, match=r"box\.kept is the symbolic size n and changes"):
        jit(keep)(x, N.bind(3))
    with pytest.raises(ShapeError, match="stores the symbolic size n in an argument"):
        jit(lambda given, p: given.append(p))([], N.bind(3))

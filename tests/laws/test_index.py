"""Index arithmetic as a whole: random expressions over loops keep their value in every iteration, and reshapes
round-trip."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernmill.ir import AxisKind, Ops, UOp, evaluate, index_const, make_range, row_strides, simplify

QUICK = settings(max_examples=150, deadline=None)
LOOPS = [make_range("a", 2, AxisKind.LOOP), make_range("b", 3, AxisKind.LOOP), make_range("c", 8, AxisKind.REDUCE)]
FACTORS = st.integers(-4, 12)
DIVISORS = st.sampled_from([-3, -1, 0, 1, 2, 3, 4, 6, 8, 12, 24])


def grow(inner: st.SearchStrategy[UOp]) -> st.SearchStrategy[UOp]:
    pairs = st.tuples(inner, inner)
    compare = pairs.map(lambda p: p[0] < p[1]) | pairs.map(lambda p: p[0] <= p[1]) | pairs.map(lambda p: p[0].eq(p[1]))
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0].alu(Ops.MAX, p[1])),
        pairs.map(lambda p: p[0].alu(Ops.MIN, p[1])),
        st.tuples(inner, FACTORS).map(lambda p: p[0] * p[1]),
        st.tuples(inner, DIVISORS).map(lambda p: p[0] // p[1]),
        st.tuples(inner, DIVISORS).map(lambda p: p[0] % p[1]),
        inner.map(lambda u: -u),
        st.tuples(compare, inner, inner).map(lambda p: p[0].where(p[1], p[2])),
    )


EXPRESSIONS = st.recursive(st.sampled_from(LOOPS) | FACTORS.map(index_const), grow, max_leaves=12)
CONDITIONS = st.tuples(EXPRESSIONS, EXPRESSIONS).flatmap(
    lambda p: st.sampled_from([p[0] < p[1], p[0] <= p[1], p[0].eq(p[1]), p[0].ne(p[1])])
)


def values(u: UOp) -> np.ndarray[Any, Any]:
    """The value in every iteration of all three loops."""
    shapes = dict(zip(LOOPS, [(2, 1, 1), (1, 3, 1), (1, 1, 8)], strict=True))
    tables = {loop: np.arange(prod(shape)).reshape(shape) for loop, shape in shapes.items()}
    return np.broadcast_to(evaluate(u, tables), (2, 3, 8))


@QUICK
@given(EXPRESSIONS | CONDITIONS)
def test_simplify_keeps_the_value_in_every_iteration(u: UOp) -> None:
    simple = simplify(u)
    assert simple.dtype is u.dtype
    np.testing.assert_array_equal(values(simple), values(u))


@QUICK
@given(EXPRESSIONS | CONDITIONS)
def test_bounds_hold_every_value(u: UOp) -> None:
    for v in (u, simplify(u)):
        low, high = v.bounds
        assert low <= values(v).min()
        assert values(v).max() <= high


@QUICK
@given(EXPRESSIONS | CONDITIONS)
def test_simplify_is_idempotent(u: UOp) -> None:
    simple = simplify(u)
    assert simplify(simple) is simple
    for node in simple.toposort():  # what is marked as simple is: the laws find nothing to do anywhere in it
        forget(node)
    assert simplify(simple) is simple


def forget(node: UOp) -> None:
    """Make `simplify` look at a node again."""
    del node._simple
    node._simple = MISSING


MISSING = UOp(Ops.VARIABLE, index_const(0).dtype, (), ("never simplified", 0, 9))._simple


# --- reshapes --------------------------------------------------------------------------------------------------------
def flat(index: list[UOp], shape: tuple[int, ...]) -> UOp:
    return simplify(sum((i * stride for i, stride in zip(index, row_strides(shape), strict=True)), index_const(0)))


def split(place: UOp, shape: tuple[int, ...]) -> list[UOp]:
    return [simplify((place // stride) % size) for size, stride in zip(shape, row_strides(shape), strict=True)]


@st.composite
def shapes_of(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """A shape with `count` elements."""
    shape = []
    while count > 1:
        size = draw(st.sampled_from([d for d in range(2, count + 1) if count % d == 0]))
        shape.append(size)
        count //= size
    if draw(st.booleans()):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


@QUICK
@given(st.data())
def test_a_reshape_and_its_inverse_vanish(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([6, 8, 12, 24, 36, 60, 64, 210, 1024]))
    first = data.draw(shapes_of(count))
    loops = [make_range(f"i{n}", size, AxisKind.LOOP) for n, size in enumerate(first)]
    index: list[UOp] = loops
    shape = first
    for _ in range(data.draw(st.integers(1, 3))):
        other = data.draw(shapes_of(count))
        index, shape = split(flat(index, shape), other), other
    back = split(flat(index, shape), first)
    assert back == [simplify(loop) if loop.bounds[1] else index_const(0) for loop in loops]


@pytest.mark.parametrize("shape", [(2, 3, 4), (24,), (4, 6), (2, 1, 12), (3, 8)])
def test_one_loop_split_and_joined_is_the_loop(shape: tuple[int, ...]) -> None:
    loop = make_range("i", 24, AxisKind.LOOP)
    assert flat(split(loop, shape), shape) is loop
    shifted = loop + 3
    assert flat([simplify(p) for p in split(shifted, shape)], shape) is simplify(shifted % 24)

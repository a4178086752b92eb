"""Shapes: broadcasting, counting, strides, and how they are shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernmill.ir import (
    Ops,
    ShapeError,
    UOp,
    broadcast_shapes,
    dtypes,
    index_const,
    numel,
    row_strides,
    show_shape,
    show_size,
    static,
)

N = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 9))
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(SHAPES, SHAPES)
def test_broadcasting_is_that_of_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        want = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ShapeError, match=r"do not broadcast: at axis -\d the sizes are"):
            broadcast_shapes("add", a, b)
    else:
        assert broadcast_shapes("add", a, b) == want


def test_symbolic_sizes_broadcast_with_themselves_and_one() -> None:
    assert broadcast_shapes("add", (N, 1), (1, 3)) == (N, 3)
    assert broadcast_shapes("add", (N,), (N,)) == (N,)
    with pytest.raises(ShapeError, match=r"add: shapes \(n,\) and \(4,\) do not broadcast"):
        broadcast_shapes("add", (N,), (4,))


@given(st.lists(st.integers(1, 5), max_size=5).map(tuple))
def test_strides_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.int8)
    wide = [size for size in shape if size > 1]
    assert [s for s, size in zip(row_strides(shape), shape, strict=True) if size > 1] == [
        s for s, size in zip(array.strides, shape, strict=True) if size > 1
    ]
    assert numel(shape) == array.size
    assert len(wide) <= len(shape)


def test_symbolic_shapes() -> None:
    assert static((N, 3)) == (9, 3)
    assert show_shape((2, 3)) == "(2, 3)"
    assert show_shape((N,)) == "(n,)"
    assert show_shape(()) == "()"
    count = numel((N, 3))
    assert isinstance(count, UOp)
    assert count.bounds == (3, 27)


def test_sizes_as_python_writes_them() -> None:
    assert show_size(4) == "4"
    assert show_size(index_const(4)) == "4"
    assert show_size(N * 2 - 1) == "(n * 2) - 1"
    assert show_shape((N + 1, 3)) == "(n + 1, 3)"

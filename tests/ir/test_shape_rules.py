"""The shape of every tensor op, against the evaluator's arrays."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill.ir import (
    AxisKind,
    Ops,
    UOp,
    assign,
    const,
    dtypes,
    elementwise,
    evaluate,
    expand,
    iota,
    make_range,
    pad,
    permute,
    reduce_axes,
    reshape,
    shrink,
    strided,
    take,
    unwindow,
    window,
)

X = UOp(Ops.BUFFER, dtypes.float32, (), (0, "TEST", 24))
DATA = np.arange(24, dtype=np.float32)
A = reshape(X, (2, 3, 4))
GRAPHS = {
    "buffer": X,
    "reshape": reshape(X, (4, -1)),
    "expand": expand(reshape(X, (24, 1)), (24, 5)),
    "permute": permute(A, (2, 0, 1)),
    "pad": pad(A, ((0, 0), (1, 2), (3, 0))),
    "shrink": shrink(A, ((0, 1), (1, 3), (0, 4))),
    "shrink to nothing": shrink(A, ((0, 0), (1, 3), (0, 4))),
    "strided": strided(A, (1, -2, 3)),
    "window": window(X, 0, 3, 2, 4),
    "unwindow": unwindow(window(X, 0, 3, 2, 4), 0, 24, 2, 4),
    "reduce": reduce_axes(A, Ops.ADD, (0, 2)),
    "take": take(A, iota(2), 1),
    "assign": assign(A, const(dtypes.float32, 1), ((0, 2, 1), (1, 3, 1), (0, 4, 2))),
    "elementwise": elementwise(Ops.ADD, A, reshape(iota(4).cast(dtypes.float32), (1, 4))),
    "scalar": const(dtypes.float32, 2) * 3,
    "scalar and tensor": const(dtypes.float32, 2) * A,
    "cast": A.cast(dtypes.int8),
    "iota": iota(7),
    "narrower bits": UOp(Ops.BITCAST, dtypes.uint8, (A,)),
    "wider bits": UOp(Ops.BITCAST, dtypes.float64, (A,)),
    "contiguous": UOp(Ops.CONTIGUOUS, dtypes.float32, (A,)),
    "where": elementwise(Ops.WHERE, elementwise(Ops.LT, A, const(dtypes.float32, 5)), A, const(dtypes.float32, 0)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_shape_is_that_of_the_value(name: str) -> None:
    assert evaluate(GRAPHS[name], {X: DATA}).shape == GRAPHS[name].shape


def test_in_a_kernel_everything_is_a_scalar() -> None:
    i = make_range("i", 4, AxisKind.REDUCE)
    total = UOp(Ops.REDUCE, dtypes.index, (i * 2, i), (Ops.ADD, 1))
    assert (i.shape, total.shape) == ((), ())


def test_sizes_may_be_symbolic() -> None:
    n = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 24))
    part = shrink(X, ((0, n),))
    assert evaluate(part, {X: DATA}, {"n": 5}).shape == (5,)
    assert evaluate(expand(reshape(const(dtypes.float32, 1), (1,)), (n,)), {}, {"n": 3}).shape == (3,)
    (size,) = pad(part, ((1, 2),)).shape
    assert isinstance(size, UOp)
    assert size.bounds == (4, 27)

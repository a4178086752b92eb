"""Building tensor expressions: the sentence a user reads when shapes do not fit, and what is not built at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernmill.ir import (
    DeviceError,
    DTypeError,
    KernmillError,
    Ops,
    ShapeError,
    UOp,
    as_size,
    assign,
    broadcast_to,
    const,
    device_of,
    dtypes,
    elementwise,
    expand,
    flatten_axes,
    iota,
    is_same_size,
    pad,
    permute,
    reduce_axes,
    reshape,
    shrink,
    strided,
    window,
)


def buffer(count: int = 24, device: str = "A", number: int = 0) -> UOp:
    return UOp(Ops.BUFFER, dtypes.float32, (), (number, device, count))


def size(name: str) -> UOp:
    return UOp(Ops.VARIABLE, dtypes.index, (), (name, 1, 9))


X = reshape(buffer(), (2, 3, 4))
I = iota(4)  # noqa: E741

ERRORS: list[tuple[Callable[[], object], type[KernmillError], str]] = [
    (
        lambda: reshape(X, (5, -1)),
        ShapeError,
        "reshape: (2, 3, 4) -> (5, -1): no size fits the -1. Give sizes with the same product, or one -1.",
    ),
    (
        lambda: reshape(X, (5, 5)),
        ShapeError,
        "reshape: (2, 3, 4) -> (5, 5): 24 elements do not make 25. Give sizes with the same product, or one -1.",
    ),
    (
        lambda: reshape(X, (-2, 12)),
        ShapeError,
        "reshape: (2, 3, 4) -> (-2, 12): sizes are negative. Give sizes with the same product, or one -1.",
    ),
    (
        lambda: expand(X, (2, 6, 4)),
        ShapeError,
        "expand: (2, 3, 4) -> (2, 6, 4): only axes of size 1 can grow. "
        "Reshape first so that the growing axes have size 1.",
    ),
    (
        lambda: expand(X, (2, 3)),
        ShapeError,
        "expand: (2, 3, 4) -> (2, 3): only axes of size 1 can grow. "
        "Reshape first so that the growing axes have size 1.",
    ),
    (lambda: broadcast_to(X, (4,)), ShapeError, "broadcast: (2, 3, 4) has more axes than (4,). Reshape it first."),
    (lambda: permute(X, (0, 0, 1)), ShapeError, "permute: (0, 0, 1) is not an order of the 3 axes of (2, 3, 4)."),
    (lambda: pad(X, ((1, 1),)), ShapeError, "pad: (2, 3, 4) by ((1, 1),): give one pair of sizes >= 0 per axis."),
    (
        lambda: pad(X, ((0, 0), (0, -1), (0, 0))),
        ShapeError,
        "pad: (2, 3, 4) by ((0, 0), (0, -1), (0, 0)): give one pair of sizes >= 0 per axis.",
    ),
    (
        lambda: shrink(X, ((0, 3), (0, 3), (0, 4))),
        ShapeError,
        "shrink: (2, 3, 4) to ((0, 3), (0, 3), (0, 4)): need 0 <= start <= stop <= size on every axis.",
    ),
    (
        lambda: strided(X, (1, 0, 1)),
        ShapeError,
        "strided: steps (1, 0, 1) for (2, 3, 4): give one step other than 0 per axis.",
    ),
    (
        lambda: window(X, 1, 2, 1, 3),
        ShapeError,
        "window: size 2, stride 1, dilation 3 on axis 1 of (2, 3, 4): the window spans 4 elements. "
        "Pad the input or use a smaller window.",
    ),
    (lambda: elementwise(Ops.ADD, X, I), DTypeError, "add: dtypes float32, int64 differ; cast first."),
    (lambda: assign(X, I), DTypeError, "assign: a int64 value into a float32 tensor. Cast it first."),
    (
        lambda: device_of(buffer() + buffer(device="B")),
        DeviceError,
        "an expression mixes tensors on A and B. Move one side with .to('A').",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), ERRORS, ids=[row[2][:50] for row in ERRORS])
def test_the_sentence_a_user_reads(call: Callable[[], object], error: type[KernmillError], message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message


def test_what_changes_nothing_is_not_built() -> None:
    assert reshape(X, (2, 3, 4)) is X
    assert expand(X, (2, 3, 4)) is X
    assert permute(X, (0, 1, 2)) is X
    assert pad(X, ((0, 0),) * 3) is X
    assert shrink(X, ((0, 2), (0, 3), (0, 4))) is X
    assert strided(X, (1, 1, 1)) is X
    assert reduce_axes(reshape(X, (1, 24)), Ops.ADD, (0,)) is reshape(X, (1, 24))
    assert broadcast_to(const(dtypes.float32, 1), (3,)).shape == ()


def test_chains_are_one_node() -> None:
    assert reshape(reshape(X, (6, 4)), (24,)) is reshape(X, (24,))
    assert reshape(reshape(X, (6, 4)), (24,)) is X.src[0] or reshape(X, (24,)).op is Ops.RESHAPE
    assert permute(permute(X, (1, 2, 0)), (2, 0, 1)) is X


def test_flatten_and_sizes() -> None:
    assert flatten_axes(X, 1, 2).shape == (2, 12)
    n = size("n")
    assert as_size(n - n + 3) == 3
    assert as_size(n * 1) is n
    m, k = size("m"), size("k")
    assert as_size(n * m) is as_size(m * n)
    assert as_size((n * 2) * (k * m)) is as_size(k * (m * 2) * n)
    assert as_size(n * m + m * n) is as_size(m * n * 2)


def test_sums_of_products_are_the_same_size_however_they_are_written() -> None:
    n, m = size("n"), size("m")
    assert is_same_size((n + 1) * m, n * m + m)
    assert is_same_size((n + m) * (n - m), n * n - m * m)
    assert not is_same_size((n + 1) * m, n * m + 1)
    assert not is_same_size(n, 3)
    assert is_same_size(3, 3)
    x = UOp(Ops.PARAM, dtypes.float32, (), (0, as_size((n + 1) * m)))
    assert reshape(reshape(x, (n * m + m,)), (m, n + 1)).shape == (m, as_size(n + 1))
    assert reshape(expand(reshape(const(dtypes.float32, 1), (1, 1)), (n, 4)), (-1, 2)).shape[1] == 2


def test_the_device_of_an_expression() -> None:
    assert device_of(X + 1) == "A"
    assert device_of(I) is None
    assert device_of(UOp(Ops.COPY, dtypes.float32, (X,), "B")) == "B"

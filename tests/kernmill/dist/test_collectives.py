"""Collectives against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, GradientError, ShapeError, Tensor, dist
from kernmill.dist import DistError
from tests.kernmill.dist.ranks import everywhere, given

SIZES = [1, 2, 3]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_all_reduce(size: int, dtype: str, op: str) -> None:
    reduce = getattr(np, {"max": "maximum", "min": "minimum", "sum": "add", "prod": "multiply"}[op]).reduce
    truth = reduce([given(rank, dtype).cast("float64").numpy() for rank in range(size)], axis=0)
    for result in everywhere(size, lambda rank: dist.all_reduce(given(rank, dtype), op=op)):
        assert result.dtype.name == dtype
        np.testing.assert_array_equal(result.cast("float64").numpy(), truth if dtype != "uint8" else truth % 256)


@pytest.mark.parametrize("size", SIZES)
def test_the_other_collectives(size: int) -> None:
    all_given = [given(rank).numpy() for rank in range(size)]

    def work(rank: int) -> tuple[Any, ...]:
        x = given(rank)
        first, second = dist.all_reduce(x, x[:2] * 2, op="mean")
        return (
            dist.all_gather(x).numpy(), dist.reduce_scatter(x).numpy(), dist.broadcast(x, root=size - 1).numpy(),
            first.numpy(), second.numpy(), dist.all_gather(x.bfloat16()).float().numpy(), dist.share(range(12)),
        )  # fmt: skip

    for rank, found in enumerate(everywhere(size, work)):
        np.testing.assert_array_equal(found[0], np.concatenate(all_given))
        np.testing.assert_array_equal(found[1], np.split(np.sum(all_given, 0), size)[rank])
        np.testing.assert_array_equal(found[2], all_given[-1])
        np.testing.assert_allclose(found[3], np.mean(all_given, 0), rtol=1e-6)
        np.testing.assert_allclose(found[4], 2 * np.mean(all_given, 0)[:2], rtol=1e-6)
        np.testing.assert_array_equal(found[5], found[0])
        assert list(found[6]) == list(range(rank, 12, size))


def test_send_and_recv_in_a_ring() -> None:
    def work(rank: int) -> Any:
        dist.send(Tensor([float(rank), 2.5]), (rank + 1) % 3)
        return dist.recv(Tensor.zeros(2), (rank - 1) % 3).tolist()

    assert everywhere(3, work) == [[2.0, 2.5], [0.0, 2.5], [1.0, 2.5]]


def test_a_constant_and_a_view_have_memory() -> None:
    def work(rank: int) -> Any:
        x = given(rank)
        return dist.all_reduce(Tensor.ones(3)).tolist(), dist.all_reduce(x.T[1]).tolist(), dist.all_gather(x[2:3]).shape

    for ones, column, shape in everywhere(2, work):
        assert ones == [2.0] * 3
        assert column == (given(0).T[1] + given(1).T[1]).tolist()
        assert shape == (2, 4)


def sent(rank: int, given: Tensor, like: Tensor) -> None:
    if rank:
        dist.recv(like, 0)
    else:
        dist.send(given, 1)


WRONG: dict[str, tuple[Callable[[int], Any], type[Exception], str]] = {
    "shapes differ": (lambda rank: dist.all_reduce(Tensor.ones(2 + rank)), DistError, "differ in what they exchange"),
    "dtypes differ": (
        lambda rank: dist.all_gather(Tensor.ones(2).cast("int32" if rank else "float32")), DistError, r"rank 1 has",
    ),
    "bool": (lambda rank: dist.all_reduce(Tensor([True])), DTypeError, "x.int"),
    "a gradient": (lambda rank: dist.all_reduce(Tensor([1.0], requires_grad=True)), GradientError, "x.detach"),
    "op": (lambda rank: dist.all_reduce(Tensor([1.0]), op="median"), DistError, "sum, prod, max, min, mean"),
    "rank": (lambda rank: dist.send(Tensor([1.0]), 7), DistError, "2 ranks, from 0 to 1"),
    "itself": (lambda rank: dist.send(Tensor([1.0]), rank), DistError, "is this rank itself"),
    "not a rank": (lambda rank: dist.broadcast(Tensor([1.0]), root="0"), DistError, "root='0'"),  # type: ignore[arg-type]
    "not a tensor": (lambda rank: dist.all_reduce([1.0]), DTypeError, "list is not a Tensor"),  # type: ignore[arg-type]
    "less is sent": (lambda rank: sent(rank, Tensor.ones(2), Tensor.ones(5)), DistError, "another shape or dtype than"),
    "another dtype is sent": (lambda rank: sent(rank, Tensor.ones(2), Tensor.ones(2).int()), DistError, "than int32"),
    "rows": (lambda rank: dist.share(range(7)), ShapeError, r"rows\[:6\]"),
    "parts": (lambda rank: dist.reduce_scatter(Tensor.ones(3)), ShapeError, "that 2 divides"),
    "no axes": (lambda rank: dist.all_gather(Tensor(1.0)), ShapeError, r"x.reshape\(1\)"),
    "one fails": (lambda rank: dist.barrier() if rank else 1 / 0, ZeroDivisionError, "division"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_said_on_all_ranks(name: str) -> None:
    function, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        everywhere(2, function)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dtypes
from tests.kernmill.against import close, same, values, with_torch

X = values(3, 4, 5)
AXES: list[Any] = [None, 0, -1, (0, 2), (1,)]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "any", "all"])
def test_reductions_are_numpys(name: str, axis: Any, keepdim: bool) -> None:
    want = getattr(np, name)(X.astype(np.float64), axis=axis, keepdims=keepdim)
    close(getattr(Tensor(X), name)(axis, keepdim), want, 1e-5, 1e-6)


@pytest.mark.parametrize("correction", [0, 1, 2.5])
@pytest.mark.parametrize("axis", AXES)
def test_moments_are_torchs(axis: Any, correction: float) -> None:
    with_torch(lambda t: t.var(axis, correction=correction), lambda t: t.var(axis, correction=correction), [X])
    with_torch(lambda t: t.std(axis, correction=correction), lambda t: t.std(axis, correction=correction), [X])


def test_variance_of_one_value_is_nan() -> None:
    assert np.isnan(Tensor([1.0]).var().item())


DIFFERENTIABLE: dict[str, Callable[[Any], Any]] = {
    "sum": lambda t: t.sum(1),
    "mean": lambda t: t.mean((0, 2)),
    "prod": lambda t: t.prod(1),
    "max": lambda t: t.amax(1),
    "min": lambda t: t.amin((0, 1)),
    "logsumexp": lambda t: t.logsumexp(1),
    "softmax": lambda t: t.softmax(1),
    "log_softmax": lambda t: t.log_softmax(-1),
    "norm": lambda t: t.norm(),
    "norm3": lambda t: t.norm(3, 1),
    "norm1": lambda t: t.norm(1, 1),
    "norm_inf": lambda t: t.norm(float("inf"), 2),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_values_and_gradients_are_torchs(name: str) -> None:
    fn = DIFFERENTIABLE[name]
    with_torch(fn, fn, [X], 1e-5)


@pytest.mark.parametrize("zeros", [[], [1], [1, 3]])
def test_gradient_of_a_product_with_zeros(zeros: list[int]) -> None:
    x = values(2, 5)
    x[0, zeros] = 0
    with_torch(lambda t: t.prod(1), lambda t: t.prod(1), [x])


def test_gradient_of_max_is_shared_by_equal_values() -> None:
    x = np.array([[1, 3, 3], [2, 2, 2]], np.float32)
    with_torch(lambda t: t.max(1), lambda t: t.amax(1), [x])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_ints_are_summed_in_int64(dtype: str) -> None:
    x = np.array([[1, 1, 0], [1, 0, 1]]).astype(dtype)
    same(Tensor(x).sum(1), x.sum(1, dtype=np.int64))
    same(Tensor(x).prod(0), x.prod(0, dtype=np.int64))
    assert Tensor(x).mean().dtype is dtypes.float32


def test_half_types_are_summed_in_float32() -> None:
    x = np.full(4096, 1.0, np.float16)
    assert Tensor(x).sum().item() == 4096
    assert Tensor(x).mean().item() == 1
    ones = Tensor.ones(1000, dtype=dtypes.bfloat16)
    assert ones.sum().float().item() == 1000
    assert ones.sum().dtype is dtypes.bfloat16


def test_nan_wins() -> None:
    x = np.array([[1, np.nan, 2], [3, 4, 5], [-np.inf, np.inf, 0]], np.float32)
    same(Tensor(x).max(1), x.max(1))
    same(Tensor(x).min(1), x.min(1))
    same(Tensor(x).argmax(1), x.argmax(1))
    same(Tensor(x).argmin(1), x.argmin(1))
    same(Tensor([np.nan, np.nan]).argmax(), np.array(0))


def test_places_are_the_first() -> None:
    x = np.array([[3, 7, 7], [7, 1, 1]])
    for axis in (None, 0, 1, -1):
        same(Tensor(x).argmax(axis), x.argmax(axis))
        same(Tensor(x).argmin(axis), x.argmin(axis))
    same(Tensor(x).argmax(keepdim=True), np.argmax(x, keepdims=True))
    same(Tensor(x).argmax(1, keepdim=True), x.argmax(1, keepdims=True))
    assert Tensor(5).argmax().item() == 0
    assert Tensor([True, False]).argmin().item() == 1


def test_exponentials_of_extremes() -> None:
    assert Tensor([-np.inf, -np.inf]).logsumexp().item() == -np.inf
    assert Tensor([np.inf, 1.0]).logsumexp().item() == np.inf
    close(Tensor([1e4, 1e4]).logsumexp(), 1e4 + np.log(2), 1e-6)
    close(Tensor([1e4, -1e4]).softmax(), [1, 0])
    close(Tensor([-np.inf, 0.0]).softmax(), [0, 1])
    close(Tensor(5.0).softmax(), 1.0)


def test_empty_reductions() -> None:
    e = Tensor.zeros(0, 3)
    same(e.sum(0), np.zeros(3, np.float32))
    same(e.prod(0), np.ones(3, np.float32))
    same(e.all(), np.array(True))
    same(e.any(), np.array(False))
    assert np.isnan(e.mean().item())
    same(e.max(1), np.zeros(0, np.float32))
    same(e.softmax(0), np.zeros((0, 3), np.float32))
    assert e.logsumexp(0).tolist() == [-np.inf] * 3


def test_norm_has_gradient_zero_at_zero() -> None:
    x = Tensor.zeros(3, requires_grad=True)
    x.norm().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("p", [0.5, 1.5, -1, 3])
def test_norms_have_gradient_zero_at_entries_of_zero(p: float) -> None:
    x = np.array([[0, 1, -2], [0, 0, 0], [3, 4, -5]], np.float32)
    with_torch(lambda t: t.norm(p, 1), lambda t: t.norm(p, 1), [x])


def test_std_of_equal_values_has_gradient_zero() -> None:
    x = Tensor([[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]], requires_grad=True)
    x.std(1).sum().backward()
    assert x.grad is not None
    close(x.grad, np.array([[0, 0, 0], [-0.5, 0, 0.5]], np.float32))


def test_counting_and_normalizing() -> None:
    x = np.array([[0, 1, 2], [0, 0, np.nan]], np.float32)
    same(Tensor(x).count_nonzero(1), np.count_nonzero(x, 1))
    y = values(2, 3)
    close(Tensor(y).normalize(), y / np.linalg.norm(y, axis=1, keepdims=True))
    close(Tensor(y).softmin(), np.exp(-y) / np.exp(-y).sum(-1, keepdims=True))
    var, mean = Tensor(y).var_mean(1)
    close(var, y.var(1, ddof=1))
    close(mean, y.mean(1))


def test_std_of_halves_takes_the_root_before_it_rounds() -> None:
    x = np.array([0, 600, -600, 1], np.float16)
    close(Tensor(x).std(), np.std(x.astype(np.float32), ddof=1).astype(np.float16), 1e-3)


def test_mean_of_ints_adds_exactly() -> None:
    x = np.array([2**40, 1, -(2**40), 2], np.int64)
    same(Tensor(x).mean(), np.array(0.75, np.float32))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int32", "uint32", "int64", "uint64"])
def test_the_first_place_of_equal_values(dtype: str) -> None:
    if dtype.startswith("f"):
        info = np.finfo(dtype)
        zeros = [0.0, -0.0, info.tiny, -info.tiny, info.smallest_subnormal, -info.smallest_subnormal]
        ends = [np.inf, -np.inf, 1, -1, info.max, info.min]
        sets = [zeros, ends, [*ends, np.nan, -np.nan], [np.inf], [-np.inf], [np.nan, -np.nan]]
    else:
        limits = np.iinfo(dtype)
        sets = [[limits.min, limits.max, 0, 1], [limits.min], [limits.max]]
    for numbers in sets:
        x = np.random.default_rng(0).choice(np.array(numbers, dtype), (3, 40))
        for name in ("argmax", "argmin"):
            for axis in (None, 0, 1):
                same(getattr(Tensor(x), name)(axis), np.asarray(getattr(np, name)(x, axis)))
            same(getattr(Tensor(x), name)(-1, keepdim=True), getattr(np, name)(x, -1, keepdims=True))


def test_the_mean_of_large_uint64_is_no_sum_that_wrapped() -> None:
    x = np.array([2**63, 2**63 + 2**62, 2**64 - 1], np.uint64)
    np.testing.assert_allclose(Tensor(x).mean().numpy(), x.mean(), rtol=1e-6)


WIDE = [[2**63 - 1] * 2, [-(2**63)] * 3, [2**62] * 4, [2**63 - 2, 2**63 - 1, -5], [2**62, 1, -(2**62)], [-7, 2]]


@pytest.mark.parametrize("numbers", WIDE, ids=str)
def test_a_mean_of_large_ints_does_not_wrap(numbers: list[int]) -> None:
    """They were added in int64: the mean of two that are nearly 2**63 was -1."""
    same(Tensor(numbers).mean(), np.float32(sum(numbers) / len(numbers)))
    if min(numbers) >= 0:
        both = np.array([2 * n for n in numbers], np.uint64)
        same(Tensor(both).mean(0, keepdim=True), np.array([sum(map(int, both)) / len(both)], np.float32))


def test_what_is_not_nan() -> None:
    x = X.copy()
    x[0, 1, 2] = x[1, :, 3] = np.nan
    with_torch(lambda t: t.nansum(1), lambda t: t.nansum(1), [x], 1e-5)
    with_torch(lambda t: t.nanmean((0, 2), True), lambda t: t.nanmean((0, 2), True), [x], 1e-5)
    assert np.isnan(Tensor([np.nan]).nanmean().item())


def test_a_mean_of_what_is_not_nan_counts_beyond_its_dtype() -> None:
    """The count was kept in the dtype: inf in float16, and True for bools."""
    x = np.full(70001, 0.5, np.float16)
    x[3] = np.nan
    same(Tensor(x).nanmean(), np.float16(0.5))
    same(Tensor(x + np.float16(30)).nanmean(), np.float16(30.5))
    close(Tensor([True, False, True]).nanmean(), np.float32(2 / 3), 1e-6)


LONG: list[tuple[tuple[int, ...], Any]] = [
    ((1 << 16,), None), ((1 << 22,), None), ((1_000_003,), None), ((16, 16384), 1), ((17, 70_001), 1), ((65536, 64), 0),
    ((20_011, 5), 0), ((64, 16, 1024), (0, 2)), ((300, 300), (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), LONG, ids=str)
def test_long_sums_lose_no_digits(shape: tuple[int, ...], axis: Any) -> None:
    """Equal values, whose roundings all go the same way: one number that took in all of them was up to 2.6e-4 off."""
    x = np.full(shape, 0.1, np.float32)
    close(Tensor(x).sum(axis), np.asarray(np.sum(x, axis=axis, dtype=np.float64)), 1.5e-6, 0)
    close(Tensor(x).mean(axis), np.asarray(np.mean(x, axis=axis, dtype=np.float64)), 1.5e-6, 0)


def test_a_sum_beside_that_of_its_repetitions() -> None:
    """A kernel whose only long chain is that of places, with no step to place: it failed with Python's ValueError."""
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = Tensor(a).realize()
    assert (x.sum() + x.repeat(2, 2).sum()).item() == 5 * a.sum()

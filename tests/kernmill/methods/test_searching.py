from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dtypes

from ..against import close, values, with_torch

ANY: Any = Tensor


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 40])
def test_searchsorted_is_numpys(dtype: str, size: int) -> None:
    rng = np.random.default_rng([size, len(dtype)])
    own = np.sort(rng.integers(0, 20, size)).astype(dtype)
    wanted = rng.integers(0, 25, (3, 5)).astype(dtype)
    for side in ("left", "right"):
        got = ANY(own).searchsorted(Tensor(wanted), side=side)
        assert got.dtype is dtypes.int64
        np.testing.assert_array_equal(got.numpy(), np.searchsorted(own, wanted, side=side))


def test_searchsorted_of_nan_infinities_and_rows() -> None:
    own = np.array([-np.inf, -1.0, 0.0, 2.0, np.inf, np.nan], np.float32)
    wanted = np.array([np.nan, -np.inf, np.inf, -0.0, 1.0], np.float32)
    for side in ("left", "right"):
        got = ANY(own).searchsorted(Tensor(wanted), side=side)
        np.testing.assert_array_equal(got.numpy(), np.searchsorted(own, wanted, side=side))
    rows = np.sort(values(3, 8), 1)
    asked = values(3, 4, seed=1)
    want = [np.searchsorted(a, b, "right") for a, b in zip(rows, asked, strict=True)]
    np.testing.assert_array_equal(ANY(rows).searchsorted(Tensor(asked), right=True).numpy(), want)


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_isin_is_numpys(count: int) -> None:
    rng = np.random.default_rng(count)
    x, others = rng.integers(0, 60, (5, 6)), rng.integers(0, 60, count)
    for invert in (False, True):
        got = Tensor(x).isin(Tensor(others), invert=invert)
        np.testing.assert_array_equal(got.numpy(), np.isin(x, others, invert=invert))
    floats = np.array([1.0, np.nan, -0.0, np.inf], np.float32)
    pool = np.concatenate([floats, np.arange(100, 100 + count, dtype=np.float32)])
    np.testing.assert_array_equal(Tensor(floats).isin(pool).numpy(), np.isin(floats, pool))


REDUCTIONS = ["sum", "prod", "mean", "amax", "amin"]


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_scatter_reduce_is_torchs(reduce: str, include_self: bool, dtype: str) -> None:
    torch: Any = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    x, y = rng.integers(-4, 5, (5, 4)).astype(dtype), rng.integers(-4, 5, (3, 7)).astype(dtype)
    index = rng.integers(0, 4, (3, 7))
    for axis, own, source, at in ((1, x, y, index), (0, x.T, y.T, index.T), (-1, x[0], y[0], index[0])):
        with np.errstate(all="ignore"):
            got = ANY(own).scatter_reduce(axis, Tensor(at), Tensor(source), reduce, include_self=include_self)
            args = (axis, torch.tensor(at), torch.tensor(source), reduce)
            want = torch.tensor(own).scatter_reduce(*args, include_self=include_self)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-3 if dtype == "float16" else 1e-6)
        assert got.numpy().dtype == want.numpy().dtype
        if include_self:
            by_scatter = ANY(own).scatter(axis, Tensor(at), Tensor(source), reduce=reduce)
            np.testing.assert_array_equal(by_scatter.numpy(), got.numpy())


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_of_scatter_reduce_are_torchs(reduce: str) -> None:
    torch: Any = pytest.importorskip("torch")
    x, y, index = values(3, 4, seed=1), values(3, 6, seed=2), np.random.default_rng(3).integers(0, 4, (3, 6))
    for include_self in (True, False):
        with_torch(
            lambda a, b, keep=include_self: a.scatter_reduce(1, Tensor(index), b, reduce, include_self=keep),
            lambda a, b, keep=include_self: a.scatter_reduce(1, torch.tensor(index), b, reduce, include_self=keep),
            [x, y],
        )


def test_many_entries_with_one_index_are_reduced() -> None:
    """So many that the compiler scatters them (or sorts, for sums), with empty segments."""
    rng = np.random.default_rng(2)
    x, index = rng.standard_normal((3000, 3)).astype(np.float32), rng.integers(0, 90, 3000)
    want = {"sum": np.zeros((97, 3)), "max": np.full((97, 3), -np.inf), "min": np.full((97, 3), np.inf)}
    np.add.at(want["sum"], index, x)
    np.maximum.at(want["max"], index, x)
    np.minimum.at(want["min"], index, x)
    for name, expected in want.items():
        got = getattr(ANY(x), f"segment_{name}")(Tensor(index), 97)
        close(got, expected.astype(np.float32), 1e-5, 1e-5)
    few = ANY(x[:6]).segment_prod(Tensor([0, 0, 2, 2, 2, 0]), 3)
    close(few, np.stack([x[[0, 1, 5]].prod(0), np.ones(3), x[2:5].prod(0)]).astype(np.float32))


@pytest.mark.parametrize("shape", [(4, 5), (7,), (), (0, 3), (2, 2, 3)])
@pytest.mark.parametrize("size", [0, 3, 30])
def test_nonzero_and_masked_select_of_a_fixed_size(shape: tuple[int, ...], size: int) -> None:
    x = np.random.default_rng(1).integers(0, 2, shape)
    mask = x != 0
    want = np.full((size, len(shape)), -7)
    found = np.argwhere(x)[:size]
    want[: len(found)] = found
    np.testing.assert_array_equal(ANY(x).nonzero(size=size, fill_value=-7).numpy(), want)
    y = np.arange(np.prod(shape)).reshape(shape)
    picked = np.full(size, -7)
    picked[: len(y[mask][:size])] = y[mask][:size]
    np.testing.assert_array_equal(ANY(y).masked_select(Tensor(mask), size=size, fill_value=-7).numpy(), picked)


def test_repeats_by_an_array_are_numpys() -> None:
    x = values(3, 4)
    for repeats in ([1, 0, 2], np.array([2, 2, 2]), (0, 0, 0), [3]):
        close(ANY(x).repeat_interleave(repeats, 0), np.repeat(x, repeats, 0))
        close(ANY(x).repeat_interleave(Tensor(np.asarray(repeats)), 0), np.repeat(x, repeats, 0))
    close(ANY(x).repeat_interleave(list(range(12))), np.repeat(x, list(range(12))))

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, IndexRangeError, SettingError, ShapeError, Tensor
from kernmill.runtime import collecting_kernels
from tests.kernmill.against import close, same, values, with_torch

X = values(3, 6)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_running_values_and_gradients_are_torchs(name: str, axis: int) -> None:
    for x in (X, values(20, 35)):
        with_torch(lambda t: getattr(t, name)(axis), lambda t: getattr(t, name)(axis), [x], 1e-5)


def test_a_running_logarithm_of_a_sum_has_scalars_infinities_and_long_rows() -> None:
    """It took the square of a row's length, and refused a scalar."""
    ends, large = np.array([-np.inf, -np.inf, 1, np.inf, 2]), np.array([800, -800, 800, np.nan, 1])
    for x in (np.float32(3), np.zeros((2, 0)), ends, large, np.arange(20_000).reshape(2, -1) % 7 * 0.1):
        with np.errstate(invalid="ignore"):
            close(Tensor(x).logcumsumexp(-1), np.logaddexp.accumulate(x, -1) if x.ndim else x)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes(name: str) -> None:
    x = np.array([1, 3, 2, np.nan, 5], np.float32)
    numpy = np.maximum if name == "cummax" else np.minimum
    same(getattr(Tensor(x), name)().values, numpy.accumulate(x))
    same(getattr(Tensor(X), name)(1).values, numpy.accumulate(X, 1))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes_with_indices_are_torchs(name: str) -> None:
    """Named regression: `x.cummax(0)[0]` was the first element, where torch gives the values."""
    torch: Any = pytest.importorskip("torch")
    ties = np.random.default_rng(1).integers(0, 4, (3, 40))
    for x in (ties, ties.astype(np.float32), np.array([1, 3, 3, np.nan, 5, np.nan], np.float32), np.array(2.0)):
        for axis in range(-x.ndim, x.ndim or 1):
            extremes, indices = getattr(Tensor(x), name)(axis)
            want = getattr(torch.tensor(x), name)(axis)
            same(extremes, want.values.numpy())
            same(indices, want.indices.numpy())
    with_torch(lambda a: getattr(a, name)(1)[0], lambda a: getattr(torch, name)(a, 1)[0], [values(3, 20)])


@pytest.mark.parametrize(("length", "copies"), [(160, 0), (100, 0), (1000, 0), (169, 0), (251, 1)])
def test_running_sums_are_made_of_blocks_that_leave_nothing_over(length: int, copies: int) -> None:
    """Rows of 100 were padded to 112, and what was asked for copied out of the result: 2.6 times as long as PyTorch."""
    x = values(4, length)
    with collecting_kernels() as found:
        close(Tensor(x).cumsum(1), np.cumsum(x.astype(np.float64), 1), 1e-5, 1e-4)
    assert sum(kernel.name.startswith("map") for kernel, _ in found.values()) == copies


@pytest.mark.parametrize("target", ["", "avx2", "sse"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "float16", "float32", "float64"])
def test_running_sums_along_any_axis(dtype: str, target: str) -> None:
    rng = np.random.default_rng(len(dtype))
    with Context(DEVICE="LLVM", TARGET=target):
        for ndim in (1, 2, 3, 3):
            shape = (
                rng.choice([1, 2, 3, 7, 15, 16, 17, 31, 32, 60, 97, 251], ndim) if ndim < 3 else rng.integers(1, 40, 3)
            )
            x = rng.integers(0, 4, shape).astype(dtype)
            for axis in range(ndim):
                got = Tensor(x).cumsum(axis)
                same(got, np.cumsum(x, axis, dtype=got.numpy().dtype))
                same(Tensor(x).cummax(axis).values, np.maximum.accumulate(x, axis))


def test_running_sums_of_columns_are_stored_as_they_lie() -> None:
    """Blocks went to the last axis, and what stands before each was gathered: 4 times as long for 300 rows of 1000."""
    x = values(300, 1000)
    with Context(DEVICE="LLVM"), collecting_kernels() as found:
        close(Tensor(x).cumsum(0), np.cumsum(x.astype(np.float64), 0), 1e-5, 1e-4)
    assert any(kernel.name == "sum_20x15x1000_k15" for kernel, _ in found.values())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_is_made_of_running_sums_is_made_behind_them(dtype: str) -> None:
    """Conversions and other work went into the loop over all places, each found by divisions: 3 to 8 times as long as
    PyTorch for 257 rows of 1000."""
    numbers = np.arange(5000).reshape(5, 1000) % 3 - 1
    x = Tensor(numbers).cast(dtype).realize()
    with collecting_kernels() as found:
        same((x.cumsum(1) * 2).cast("float32"), np.cumsum(numbers, 1).astype(np.float32) * 2)
    assert any(kernel.name == "sum_5x100x10_k10" for kernel, _ in found.values())
    assert Tensor(np.ones((2, 0))).cast(dtype).cumsum(1).dtype == x.dtype


@pytest.mark.parametrize("length", [0, 1, 256, 257, 1000])
def test_long_running_sums(length: int) -> None:
    x = np.arange(length) % 7 - 3
    same(Tensor(x).cumsum(), np.cumsum(x))
    close(Tensor(x.astype(np.float32)).cumsum(), np.cumsum(x).astype(np.float32))
    same(Tensor(x).cummax().values, np.maximum.accumulate(x) if length else x)


def test_infinity_in_a_running_sum() -> None:
    x = np.array([1, np.inf, 2, -np.inf, 1], np.float32)
    with np.errstate(invalid="ignore"):
        same(Tensor(x).cumsum(), np.cumsum(x))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_is_stable(axis: int, descending: bool) -> None:
    x = np.random.default_rng(0).integers(0, 4, (5, 9))
    got, places = Tensor(x).sort(axis, descending=descending)
    want = np.argsort(-x if descending else x, axis, kind="stable")
    same(places, want)
    same(got, np.take_along_axis(x, want, axis))
    same(Tensor(x).argsort(axis, descending), want)


def test_nan_comes_last() -> None:
    x = np.array([3, np.nan, 2, np.nan, -np.inf, np.inf], np.float32)
    got, places = Tensor(x).sort()
    same(got, np.sort(x))
    same(places, np.argsort(x, kind="stable"))
    assert np.isnan(Tensor(x).sort(descending=True)[0].numpy()[:2]).all()


def test_topk() -> None:
    x = values(4, 7)
    got, places = Tensor(x).topk(3)
    want = np.argsort(-x, -1, kind="stable")[:, :3]
    same(places, want)
    same(got, np.take_along_axis(x, want, -1))
    same(Tensor(x).topk(2, largest=False)[0], np.sort(x, -1)[:, :2])
    assert Tensor(x).topk(0)[0].shape == (4, 0)
    with_torch(lambda t: t.topk(2)[0], lambda t: t.topk(2)[0], [x])
    with_torch(lambda t: t.sort(0)[0], lambda t: t.sort(0)[0], [x])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("length", [33, 100])
def test_long_axes_are_merged(length: int, dtype: str) -> None:
    rng = np.random.default_rng(length)
    if dtype.startswith("f"):
        info = np.finfo(dtype)
        ends = [0.0, -0.0, np.nan, np.inf, -np.inf, 1, -1, info.max, info.min, info.tiny, info.smallest_subnormal]
        x = rng.choice(np.array(ends, dtype), (3, length))
        x[:, ::2] = rng.standard_normal(x[:, ::2].shape)
    else:
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, (3, length), dtype, endpoint=True)
        x[:, ::3] = rng.choice(np.array([limits.min, limits.max, 0, 1], dtype), x[:, ::3].shape)
    want = np.argsort(x, -1, kind="stable")
    same(Tensor(x).argsort(), want)
    same(Tensor(x.T.copy()).argsort(0), want.T)
    same(Tensor(x).sort()[0], np.take_along_axis(x, want, -1))
    for k in (1, 31, length // 2):
        same(Tensor(x).topk(k, largest=False)[1], want[:, :k])
    falling = np.stack([sorted(range(length), key=lambda i: (x[r, i] == x[r, i], -x[r, i].item())) for r in range(3)])
    same(Tensor(x).argsort(descending=True), falling)
    same(Tensor(x).topk(33)[1], falling[:, :33])


def test_a_long_sort_is_not_quadratic() -> None:
    with Context(DEVICE="LLVM"):
        x = np.random.default_rng(0).standard_normal(60_001).astype(np.float32)
        same(Tensor(x).argsort(), np.argsort(x, kind="stable"))
        same(Tensor(x).topk(40)[1], np.argsort(-x, kind="stable")[:40])


def test_places_in_order_are_known_to_be_inside() -> None:
    """They once were checked again before the values were picked: a pass over all, and a wait for its result."""
    for length in (64, 100):
        with collecting_kernels() as seen:
            values = Tensor.rand(3, length).sort(-1)[0].numpy()
        assert (np.diff(values) >= 0).all()
        assert not [kernel.name for kernel, _ in seen.values() if kernel.name.startswith("any")]


def test_sorting_little() -> None:
    assert Tensor(3.0).sort()[0].item() == 3
    assert Tensor.zeros(0).sort()[0].tolist() == []
    assert Tensor([1.0]).sort()[1].tolist() == [0]


def test_median_is_the_lower_middle() -> None:
    assert Tensor([4.0, 1.0, 3.0, 2.0]).median().item() == 2
    assert np.isnan(Tensor([4.0, np.nan, 3.0]).median().item())
    same(Tensor(X).median(0), np.sort(X, 0)[1])


@pytest.mark.parametrize("q", [0, 0.1, 0.5, 0.75, 1])
def test_quantiles_are_numpys(q: float) -> None:
    x = X.copy()
    x[1, 2] = np.nan
    for axis in (None, 0, 1):
        close(Tensor(X).quantile(q, axis), np.quantile(X, q, axis), 1e-5)
        close(Tensor(x).quantile(q, axis), np.quantile(x, q, axis), 1e-5)


def test_the_middle_of_one_number() -> None:
    """Named regression: axis 0, as other methods take it of a 0-d tensor, was an IndexError of Python's."""
    for axis in (None, 0, -1):
        assert Tensor(3.0).median(axis).item() == Tensor(3.0).quantile(0.5, axis).item() == 3
    with pytest.raises(IndexRangeError, match="median: axis 1 of a tensor of shape"):
        Tensor(3.0).median(1)


def test_quantiles_that_are_none() -> None:
    with pytest.raises(SettingError, match="quantile: q=2"):
        Tensor(X).quantile(2)
    with pytest.raises(ShapeError, match="the quantile of an empty axis is undefined"):
        Tensor.zeros(0).quantile(0.5)


def test_what_sort_and_topk_give_has_names() -> None:
    for found in (Tensor(X).sort(1), Tensor(X).topk(2, 1)):
        values_of_it, places = found
        assert (found.values, found.indices) == (values_of_it, places)


def test_quantiles_at_entries_are_those() -> None:
    """Between an infinity and itself there was nan."""
    x = np.array([1, np.inf, -np.inf, 3, np.inf], np.float32)
    assert [Tensor(x).quantile(q).item() for q in (0, 0.25, 0.5, 1)] == [-np.inf, 1, 3, np.inf]


@pytest.mark.parametrize(
    ("x", "given"),
    [([1.0, 2.0, 1.0, 2.5], (4,)), ([1.0, 1.0], (3,)), ([1.0, 1.0, 3.0], (3, 1, 1)), ([], (3,)),
     ([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -1.0, np.nan], (4, 0, 2)), (values(500).tolist(), (20, -1.5, 1.5))],
)  # fmt: skip
def test_histc_is_torchs(x: list[float], given: tuple[float, ...]) -> None:
    torch = pytest.importorskip("torch")
    found = Tensor(np.array(x, np.float32)).histc(*given)  # type: ignore[arg-type]
    same(found, torch.histc(torch.tensor(x), *given).long().numpy())


def test_histc_of_its_own_range_leaves_infinities_out() -> None:
    assert Tensor([1.0, np.inf, 3.0, np.nan, 2.0, -np.inf]).histc(2).tolist() == [1, 2]

"""What a neighbouring project answers wrongly without a word, found by running it. None of it may be wrong here."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from kernmill import Context, DTypeError, IndexRangeError, Tensor, dtypes
from tests.kernmill.against import same


@pytest.fixture(autouse=True)
def on_device(device: str) -> Iterator[None]:
    with Context(DEVICE=device):
        yield


def test_strided_assignment_arrives() -> None:
    t = Tensor.zeros(6).realize()
    t[::2] = 1
    assert t.tolist() == [1, 0, 1, 0, 1, 0]


def test_nan_times_zero_is_nan() -> None:
    assert np.isnan((Tensor([np.nan, np.inf]) * 0).numpy()).all()


def test_x_over_x_is_nan_at_zero_and_infinity() -> None:
    x = Tensor([0.0, np.inf, 2.0])
    same(x / x, np.array([np.nan, np.nan, 1], np.float32))
    y = Tensor([0.0])
    assert np.isnan((Tensor([3.0]) * y / y).item())


def test_x_minus_x_is_nan_at_infinity() -> None:
    x = Tensor([np.inf, np.nan, 1.0])
    same(x - x, np.array([np.nan, np.nan, 0], np.float32))


def test_nan_is_seen_by_max_relu_sort_and_argmax() -> None:
    assert np.isnan(Tensor([1, np.nan, 2]).max().item())
    assert np.isnan(Tensor([np.nan]).relu().item())
    same(Tensor([3, np.nan, 2]).sort()[0], np.array([2, 3, np.nan], np.float32))
    assert Tensor([1, np.nan, 2]).argmax().item() == 1


@pytest.mark.parametrize("index", [5, -7])
def test_an_index_outside_is_an_error(index: int) -> None:
    with pytest.raises(IndexRangeError):
        Tensor([1, 2, 3])[Tensor([index])].realize()
    with pytest.raises(IndexRangeError):
        Tensor([1, 2, 3])[index]


def test_an_int_outside_its_dtype_is_an_error() -> None:
    with pytest.raises(DTypeError):
        Tensor([2**40], dtype=dtypes.int32)


def test_int_sums_do_not_wrap() -> None:
    total = Tensor.full((3,), 2**31 - 1, dtype=dtypes.int32).sum()
    assert total.dtype is dtypes.int64
    assert total.item() == 3 * (2**31 - 1)


def test_logsumexp_of_nothing_likely() -> None:
    assert Tensor([-np.inf, -np.inf]).logsumexp().item() == -np.inf


def test_exp_is_near() -> None:
    x = np.linspace(-80, 80, 10001).astype(np.float32)
    want = np.exp(x.astype(np.float64))
    off = np.abs(Tensor(x).exp().numpy() - want) / np.spacing(want.astype(np.float32)).astype(np.float64)
    assert off.max() <= 3


@pytest.mark.slow
def test_a_long_sum_of_ones_is_exact() -> None:
    assert Tensor(np.ones(20_000_000, np.float32)).sum().item() == 20_000_000


def test_division_by_zero_leaves_the_process_alive() -> None:
    assert (Tensor([1, -1]) // Tensor([0, 0])).tolist() == [0, 0]
    assert (Tensor([1, -1]) % Tensor([0, 0])).tolist() == [0, 0]


def test_other_threads_may_use_tensors() -> None:
    results: list[float] = []

    def work() -> None:
        results.append((Tensor([1.0, 2.0]) * 3).sum().item())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [9, 9, 9]


def test_numpy_and_python_read_tensors() -> None:
    assert np.asarray(Tensor([1.0, 2.0])).dtype == np.float32
    assert float(Tensor(1.5)) == 1.5


def test_the_missing_methods_are_there() -> None:
    assert Tensor([3.0, 4.0]).norm().item() == 5
    assert Tensor([3.0, 4.0]).mse_loss(Tensor([3.0, 2.0])).item() == 2
    assert Tensor.ones(1, 1, 4).conv1d(Tensor.ones(1, 1, 2)).shape == (1, 1, 3)
    assert Tensor([1.0], requires_grad=True).requires_grad
    assert Tensor([3.0, 1.0, 2.0]).median().item() == 2

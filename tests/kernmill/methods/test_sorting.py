"""Keys in order: every number of them, with and without a rest that nobody asks for."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor


@pytest.mark.parametrize("size", [1, 2, 8, 32, 128])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_network_sorts(device: str, size: int, dtype: str) -> None:
    keys = np.random.default_rng(size).permutation(3 * size)[: 2 * size].reshape(2, size).astype(dtype)
    assert np.array_equal(Tensor(keys)._merged(size).numpy(), np.sort(keys, 1))


def test_the_first_ones_are_in_order(device: str) -> None:
    keys = np.random.default_rng(0).permutation(64)
    assert np.array_equal(Tensor(keys)._merged(5).numpy()[:5], np.arange(5))


def test_ranks_sort_too(device: str) -> None:
    keys = np.random.default_rng(0).permutation(21).reshape(3, 7)
    assert np.array_equal(Tensor(keys)._ranked().numpy(), np.sort(keys, 1))


@pytest.mark.parametrize("count", [None, 3])
def test_places_of_equal_values_stay_in_order(device: str, count: int | None) -> None:
    values = np.array([3, -1, 3, 2, -1, 2, 3], np.int64)
    want = np.argsort(values, kind="stable")[:count]
    assert np.array_equal(Tensor(values)._sorted_by_part(count).numpy(), want)

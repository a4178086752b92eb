from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernmill import Context, ShapeError, Tensor, dtypes, jit
from kernmill.llm.arch import Cache, Config, Places


def small(tiny: Any, capacity: int = 8, sequences: int = 1) -> Cache:
    return Cache.empty(Config.of(tiny.make("llama", {}, {}).metadata), capacity, sequences)


def part(count: int, start: int, sequences: int = 1) -> np.ndarray[Any, Any]:
    return (np.arange(2 * sequences * count * 6, dtype=np.float32) + start).reshape(sequences, 2, count, 6)


def at(first: Sequence[int], count: int) -> Places:
    """Plain numbers: outside of a captured function."""
    return Places(first, max(first) + count)


@pytest.mark.parametrize("device", ["LLVM", "PYTHON"])
@pytest.mark.parametrize(("count", "position"), [(1, 0), (1, 7), (3, 2), (3, 5), (8, 0)])
def test_new_tokens_go_to_their_places(tiny: Any, count: int, position: int, device: str) -> None:
    with Context(DEVICE=device):
        cache = small(tiny)
        keys, values = cache.write(1, at([position], count), Tensor(part(count, 1)), Tensor(part(count, 100)))
        for found, whole, start in ((keys, cache.keys[1], 1), (values, cache.values[1], 100)):
            expected = np.zeros((1, 2, 8, 6), np.float32)
            expected[:, :, position : position + count] = part(count, start)
            np.testing.assert_array_equal(whole.numpy(), expected)
            np.testing.assert_array_equal(found.numpy(), expected[:, :, : position + count])
        assert not cache.keys[0].numpy().any()


@pytest.mark.parametrize("count", [1, 2])
def test_each_sequence_has_a_position_of_its_own(tiny: Any, count: int) -> None:
    cache = small(tiny, sequences=3)
    new = part(count, 1, 3)
    keys, _ = cache.write(0, at([4, 0, 6], count), Tensor(new), Tensor(new))
    expected = np.zeros((3, 2, 8, 6), np.float32)
    for n, first in enumerate([4, 0, 6]):
        expected[n, :, first : first + count] = new[n]
    np.testing.assert_array_equal(cache.keys[0].numpy(), expected)
    np.testing.assert_array_equal(keys.numpy(), expected[:, :, : 6 + count])


@pytest.mark.parametrize("device", ["LLVM", "CL", "PYTHON"], indirect=True)
@pytest.mark.parametrize("sequences", [1, 2])
def test_one_captured_graph_serves_every_position(tiny: Any, sequences: int, device: str) -> None:
    with Context(DEVICE=device):
        cache = small(tiny, sequences=sequences)

        @jit
        def put(places: Places, keys: Tensor, values: Tensor, cache: Cache) -> Tensor:
            return cache.write(0, places, keys, values)[0].sum()

        wanted = np.zeros((2, sequences, 2, 8, 6), np.float32)
        for p in (0, 1, 2, 3, 7, 4, 5, 6):
            first = [p, 7 - p][:sequences]
            new = part(1, p, sequences), part(1, -p, sequences)
            total = put(Places.bound(first, 1, 8), Tensor(new[0]), Tensor(new[1]), cache).item()
            for n, place in enumerate(first):
                wanted[0, n, :, place], wanted[1, n, :, place] = new[0][n, :, 0], new[1][n, :, 0]
            np.testing.assert_array_equal([cache.keys[0].numpy(), cache.values[0].numpy()], wanted)
            np.testing.assert_allclose(total, wanted[0, :, :, : max(first) + 1].sum())
        assert put.cache_info()[:2] == (1, 6)


def test_rows_of_a_table(tiny: Any) -> None:
    table = np.arange(24, dtype=np.float32).reshape(8, 3)
    np.testing.assert_array_equal(at([2, 5], 3).rows(Tensor(table), 3).numpy(), [table[2:5], table[5:8]])


def test_a_step_that_does_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"first0.bind: 6 is outside of 0 to 5."):
        Places.bound([6], 3, 8)


def test_half_precision(tiny: Any) -> None:
    cache = Cache.empty(Config.of(tiny.make("llama", {}, {}).metadata), 4, dtype=dtypes.float16)
    keys, _ = cache.write(0, at([1], 1), Tensor(part(1, 1) / 3), Tensor(part(1, 1)))
    assert keys.dtype is dtypes.float16
    np.testing.assert_array_equal(keys.numpy()[:, :, 1], (part(1, 1) / 3).astype(np.float16)[:, :, 0])

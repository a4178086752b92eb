from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dtypes, jit
from kernmill.llm.arch import Cache, Config


def small(tiny: Any, capacity: int = 8) -> Cache:
    return Cache.empty(Config.of(tiny.make("llama", {}, {}).metadata), capacity)


def part(count: int, start: int) -> np.ndarray[Any, Any]:
    return (np.arange(2 * count * 6, dtype=np.float32) + start).reshape(2, count, 6)


@pytest.mark.parametrize("device", ["LLVM", "PYTHON"])
@pytest.mark.parametrize(("count", "position"), [(1, 0), (1, 7), (3, 2), (3, 5), (3, 6), (8, 0)])
def test_new_tokens_go_to_their_places(tiny: Any, count: int, position: int, device: str) -> None:
    from kernmill import Context

    with Context(DEVICE=device):
        cache = small(tiny)
        keys, values = cache.write(1, Tensor(np.int32(position)), Tensor(part(count, 1)), Tensor(part(count, 100)))
        expected = np.zeros((2, 8 + count, 6), np.float32)  # what would lie past the end is dropped
        expected[:, position : position + count] = part(count, 1)
        np.testing.assert_array_equal(keys.numpy(), expected[:, :8])
        expected[:, position : position + count] = part(count, 100)
        np.testing.assert_array_equal(values.numpy(), expected[:, :8])
        assert not cache.keys[0].numpy().any()


def test_one_captured_graph_serves_every_position(tiny: Any) -> None:
    cache = small(tiny)

    @jit
    def put(position: Tensor, keys: Tensor, values: Tensor, cache: Cache) -> Tensor:
        return cache.write(0, position, keys, values)[0].sum()

    sums = [float(put(Tensor(np.int32(p)), Tensor(part(1, p)), Tensor(part(1, -p)), cache).item()) for p in range(8)]
    assert put.cache_info()[:2] == (1, 6)
    expected = np.concatenate([part(1, p) for p in range(8)], 1)
    np.testing.assert_array_equal(cache.keys[0].numpy(), expected)
    np.testing.assert_array_equal(cache.values[0].numpy(), np.concatenate([part(1, -p) for p in range(8)], 1))
    np.testing.assert_allclose(sums, [expected[:, : p + 1].sum() for p in range(8)])


def test_half_precision(tiny: Any) -> None:
    cache = Cache.empty(Config.of(tiny.make("llama", {}, {}).metadata), 4, dtypes.float16)
    keys, _ = cache.write(0, Tensor(np.int32(1)), Tensor(part(1, 1) / 3), Tensor(part(1, 1)))
    assert keys.dtype is dtypes.float16
    np.testing.assert_array_equal(keys.numpy()[:, 1], (part(1, 1) / 3).astype(np.float16)[:, 0])

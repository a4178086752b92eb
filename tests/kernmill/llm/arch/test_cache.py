from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, dtypes, jit
from kernmill.llm.arch import Cache, Config


def small(tiny: Any, capacity: int = 8, sequences: int = 1) -> Cache:
    return Cache.empty(Config.of(tiny.make("llama", {}, {}).metadata), capacity, sequences)


def part(count: int, start: int, sequences: int = 1) -> np.ndarray[Any, Any]:
    return (np.arange(2 * sequences * count * 6, dtype=np.float32) + start).reshape(sequences, 2, count, 6)


@pytest.mark.parametrize("device", ["LLVM", "PYTHON"])
@pytest.mark.parametrize(("count", "position"), [(1, 0), (1, 7), (3, 2), (3, 5), (3, 6), (8, 0)])
def test_new_tokens_go_to_their_places(tiny: Any, count: int, position: int, device: str) -> None:
    with Context(DEVICE=device):
        cache = small(tiny)
        keys, values = cache.write(1, Tensor([position]), Tensor(part(count, 1)), Tensor(part(count, 100)))
        expected = np.zeros((1, 2, 8 + count, 6), np.float32)  # what would lie past the end is dropped
        expected[:, :, position : position + count] = part(count, 1)
        np.testing.assert_array_equal(keys.numpy(), expected[:, :, :8])
        expected[:, :, position : position + count] = part(count, 100)
        np.testing.assert_array_equal(values.numpy(), expected[:, :, :8])
        assert not cache.keys[0].numpy().any()


@pytest.mark.parametrize("count", [1, 2])
def test_each_sequence_has_a_position_of_its_own(tiny: Any, count: int) -> None:
    cache = small(tiny, sequences=3)
    new = part(count, 1, 3)
    keys, _ = cache.write(0, Tensor([4, 0, 7]), Tensor(new), Tensor(new))
    expected = np.zeros((3, 2, 8, 6), np.float32)
    expected[0, :, 4 : 4 + count], expected[1, :, :count], expected[2, :, 7] = new[0], new[1], new[2][:, 0]
    np.testing.assert_array_equal(keys.numpy(), expected)


def test_one_captured_graph_serves_every_position(tiny: Any) -> None:
    cache = small(tiny)

    @jit
    def put(position: Tensor, keys: Tensor, values: Tensor, cache: Cache) -> Tensor:
        return cache.write(0, position, keys, values)[0].sum()

    sums = [put(Tensor([p]), Tensor(part(1, p)), Tensor(part(1, -p)), cache).item() for p in range(8)]
    assert put.cache_info()[:2] == (1, 6)
    expected = np.concatenate([part(1, p) for p in range(8)], 2)
    np.testing.assert_array_equal(cache.keys[0].numpy(), expected)
    np.testing.assert_array_equal(cache.values[0].numpy(), np.concatenate([part(1, -p) for p in range(8)], 2))
    np.testing.assert_allclose(sums, [expected[:, :, : p + 1].sum() for p in range(8)])


def test_half_precision(tiny: Any) -> None:
    cache = Cache.empty(Config.of(tiny.make("llama", {}, {}).metadata), 4, dtype=dtypes.float16)
    keys, _ = cache.write(0, Tensor([1]), Tensor(part(1, 1) / 3), Tensor(part(1, 1)))
    assert keys.dtype is dtypes.float16
    np.testing.assert_array_equal(keys.numpy()[:, :, 1], (part(1, 1) / 3).astype(np.float16)[:, :, 0])

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernmill import Context, SettingError, ShapeError, Tensor, dtypes, jit
from kernmill.llm.arch import CACHE_TYPES, Cache, Config, LayerMemory, Positions, kept_by
from kernmill.llm.arch.weight import nbytes
from kernmill.llm.generate import Model
from kernmill.quant import BLOCKS


def small(tiny: Any, capacity: int = 8, sequences: int = 1) -> Cache:
    return Cache.empty(kept_by(Config.of(tiny.make("llama", {}, {}).metadata)), capacity, sequences)


def part(count: int, start: int, sequences: int = 1) -> np.ndarray[Any, Any]:
    return (np.arange(2 * sequences * count * 6, dtype=np.float32) + start).reshape(sequences, 2, count, 6)


def at(first: Sequence[int], count: int) -> Positions:
    """Plain numbers: outside of a captured function."""
    return Positions(first, max(first) + count)


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
        def put(positions: Positions, keys: Tensor, values: Tensor, cache: Cache) -> Tensor:
            return cache.write(0, positions, keys, values)[0].sum()

        wanted = np.zeros((2, sequences, 2, 8, 6), np.float32)
        for p in (0, 1, 2, 3, 7, 4, 5, 6):
            first = [p, 7 - p][:sequences]
            new = part(1, p, sequences), part(1, -p, sequences)
            total = put(Positions.bound(first, 1, 8), Tensor(new[0]), Tensor(new[1]), cache).item()
            for n, place in enumerate(first):
                wanted[0, n, :, place], wanted[1, n, :, place] = new[0][n, :, 0], new[1][n, :, 0]
            np.testing.assert_array_equal([cache.keys[0].numpy(), cache.values[0].numpy()], wanted)
            np.testing.assert_allclose(total, wanted[0, :, :, : max(first) + 1].sum())
        assert put.cache_info()[:2] == (1, 6)


def test_rows_of_a_table(tiny: Any) -> None:
    table = np.arange(24, dtype=np.float32).reshape(8, 3)
    np.testing.assert_array_equal(at([2, 5], 3).rows(Tensor(table), 3).numpy(), [table[2:5], table[5:8]])


def test_a_step_that_does_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"first0.bind: 6 is outside 0 to 5."):
        Positions.bound([6], 3, 8)


def test_half_precision(tiny: Any) -> None:
    cache = Cache.empty(kept_by(Config.of(tiny.make("llama", {}, {}).metadata)), 4, type="f16")
    keys, _ = cache.write(0, at([1], 1), Tensor(part(1, 1) / 3), Tensor(part(1, 1)))
    assert (cache.keys[0].dtype, keys.dtype) == (dtypes.float16, dtypes.float32)
    np.testing.assert_array_equal(keys.numpy()[:, :, 1], (part(1, 1) / 3).astype(np.float16)[:, :, 0])


def wide(tiny: Any, width: int = 64) -> list[LayerMemory]:
    return kept_by(Config.of(tiny.make("llama", {}, {}, embedding_length=4 * width).metadata))


@pytest.mark.parametrize("type", [kind for kind in CACHE_TYPES if kind.upper() in BLOCKS])
@pytest.mark.parametrize("sequences", [1, 2])
def test_blocks_hold_what_they_encode(tiny: Any, type: str, sequences: int) -> None:
    cache = Cache.empty(wide(tiny), 8, sequences, type)
    chance, kind = np.random.default_rng(3), BLOCKS[type.upper()]
    expected = np.zeros((2, sequences, 2, 8, 64), np.float32)
    for first in ([0, 5], [3, 1], [2, 6]):
        new = chance.standard_normal((2, sequences, 2, 2, 64)).astype(np.float32)
        found = cache.write(1, at(first[:sequences], 2), Tensor(new[0]), Tensor(new[1]))
        blocks = Tensor(new).unflatten(-1, (2, 32))
        back = kind.decode(kind.encode(blocks)).flatten(-2).numpy()
        for n, p in enumerate(first[:sequences]):
            expected[:, n, :, p : p + 2] = back[:, n]
        end = max(first[:sequences]) + 2
        for part, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(part.numpy(), wanted[:, :, :end])
    assert cache.keys[0].shape == (sequences, 2, 8, 2, kind.size_bytes)


def test_a_model_computes_with_blocks(tiny: Any) -> None:
    """Nearly as with floats, and nearer the more bits there are; alone as among several sequences."""
    made = tiny.make("llama", {}, {}, embedding_length=128, attention__head_count=4)
    tensors = {name: Tensor(array.astype(np.float32)) for name, array in made.weights.items()}
    config, ids, apart = Config.of(made.metadata), list(tiny.IDS), {}
    exact = made.model().logits(ids).numpy()
    for kind in ("f16", "q8_0", "q4_0"):
        models = [Model(config, tensors.get, capacity=16, block=4, sequences=n, cache_type=kind) for n in (1, 2)]
        found = models[0].logits(ids).numpy()
        apart[kind] = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
        np.testing.assert_allclose(models[0].next_logits(ids), found[-1], rtol=1e-4, atol=1e-5)
        steps = list(models[1].generate_all([ids[:3], ids], max_tokens=4))
        for n, prompt in enumerate((ids[:3], ids)):
            assert [step[n] for step in steps] == list(models[0].generate(prompt, max_tokens=4))
    assert 0 < apart["f16"] < 1e-3 < apart["q8_0"] < 0.02 < apart["q4_0"] < 0.3


def test_what_is_no_cache(tiny: Any) -> None:
    with pytest.raises(SettingError, match=r"^cache of 'q7': must be one of f32, f16, bf16, q4_0, "):
        Cache.empty(wide(tiny), 8, type="q7")
    with pytest.raises(SettingError) as caught:
        Cache.empty(wide(tiny, 16), 8, type="q8_0")
    assert str(caught.value) == (
        "cache of q8_0: heads of 16 values are not a multiple of the block size 32. Choose one of f32, f16, bf16."
    )


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_what_it_takes_is_known_before(tiny: Any, kind: str) -> None:
    layers = [*kept_by(Config.of(tiny.make("llama", {}, {}).metadata)), LayerMemory(0, 0, 0, ((3, 4), (2, 5, 6)))]
    cache = Cache.empty(layers, 8, 3, kind)
    assert Cache.nbytes(layers, 8, 3, kind) == sum(map(nbytes, cache.tensors))

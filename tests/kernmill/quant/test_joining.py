"""Matrices that follow each other in an arena as one: its rows are theirs, over the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dtypes
from kernmill.quant import FloatMatrix, QuantizedTensor, joined, rows_together
from kernmill.quant.registry import block_type
from kernmill.runtime import WeightArena
from tests.kernmill.against import only_on, values

on_device = only_on("LLVM")  # which lays rows side by side in arenas


def blocks(rows: int, n: int, kind: str, arena: WeightArena | None) -> QuantizedTensor:
    return QuantizedTensor.quantize(Tensor(values(rows, n, seed=rows)), kind).realize().interleaved(arena)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q6_K", "Q4_K"])
@pytest.mark.parametrize("last", [64, 40])
def test_blocks(kind: str, last: int) -> None:
    """The last group of rows may be a part of one."""
    arena, n = WeightArena("LLVM"), 2 * block_type(kind).values
    parts = [blocks(rows, n, kind, arena) for rows in (128, 32, last)]
    whole = joined(parts)
    assert isinstance(whole, QuantizedTensor)
    assert whole.shape == (160 + last, n)
    assert np.shares_memory(whole.data.numpy(), parts[1].data.numpy())
    np.testing.assert_array_equal(whole.dequantize().numpy(), np.concatenate([p.dequantize().numpy() for p in parts]))
    for count in (1, 20):
        x = Tensor(values(count, n))
        separate = np.concatenate([p.linear(x).numpy() for p in parts], axis=1)
        np.testing.assert_allclose(whole.linear(x).numpy(), separate, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [dtypes.float16, dtypes.bfloat16, dtypes.float32], ids=str)
def test_floats(kind: Any) -> None:
    arena = WeightArena("LLVM")
    parts = [FloatMatrix.of(Tensor(values(rows, 96, seed=rows)).cast(kind).realize(), arena) for rows in (48, 16, 33)]
    whole = joined(parts)
    assert isinstance(whole, FloatMatrix)
    assert whole.shape == (97, 96)
    every = Tensor.arange(97)
    want = np.concatenate([p.rows(Tensor.arange(p.shape[0])).numpy() for p in parts])
    np.testing.assert_array_equal(whole.rows(every).numpy(), want)
    np.testing.assert_allclose(whole.linear(Tensor(values(1, 96))).numpy()[0], want @ values(1, 96)[0], atol=1e-4)


def test_what_is_no_neighbour_stays_apart() -> None:
    arena = WeightArena("LLVM")
    first, second = blocks(64, 64, "Q8_0", arena), blocks(64, 64, "Q8_0", arena)
    assert joined([first, second]) is not None
    assert joined([second, first]) is None
    assert joined([first, first]) is None
    third = blocks(64, 64, "Q8_0", arena)
    assert joined([first, third]) is None
    assert joined([third, blocks(64, 64, "Q8_0", WeightArena("LLVM"))]) is None
    assert joined([third, blocks(64, 64, "Q8_0", None)]) is None


def test_what_is_unlike_stays_apart() -> None:
    """Another type, another width, floats beside blocks, part of a group before the end, tensors."""
    arena = WeightArena("LLVM")
    part, after = blocks(8, 64, "Q8_0", arena), blocks(64, 64, "Q8_0", arena)
    assert joined([part, after]) is None
    four = blocks(64, 64, "Q4_0", arena)
    assert joined([after, four]) is None
    wide = blocks(64, 128, "Q4_0", arena)
    assert joined([four, wide]) is None
    half = FloatMatrix.of(Tensor(values(64, 64)).half().realize(), arena)
    assert joined([wide, half]) is None
    assert joined([half, FloatMatrix.of(Tensor(values(64, 64)), arena)]) is None
    assert joined([half, Tensor(values(64, 64))]) is None
    assert joined([Tensor(values(64, 64)), Tensor(values(64, 64))]) is None


def test_blocks_by_turns_take_whole_turns() -> None:
    """Where 32 rows are a group, 16 more are none."""
    arena = WeightArena("LLVM")
    parts = [blocks(48, 256, "Q4_K", arena), blocks(64, 256, "Q4_K", arena)]
    assert (joined(parts) is None) == (rows_together(block_type("Q4_K")) == 32)

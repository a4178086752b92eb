"""Products through a matrix unit, or through the functions that stand for one (TARGET=amx), against NumPy."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.ir import Context, DType, dtypes, round_bfloat16
from tests.renderers.mma_stand_in import put_in

BF16, F16, I8, U8 = dtypes.bfloat16, dtypes.float16, dtypes.int8, dtypes.uint8
SIZES = [(32, 64, 32), (96, 96, 96), (33, 70, 50), (16, 64, 16), (17, 33, 17), (8, 40, 200), (200, 300, 9)]
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _for_a_matrix_unit() -> Iterator[None]:
    with Context(TARGET="amx"):
        yield


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """What the dtype holds, as an array that NumPy has."""
    if dtype.is_int:
        found = rng.integers(int(dtype.min), int(dtype.max), shape, endpoint=True).astype(dtype.name)
        found.reshape(-1)[::7], found.reshape(-1)[::11] = dtype.min, dtype.max
        return found
    floats = rng.standard_normal(shape).astype(np.float32)
    return round_bfloat16(floats) if dtype is BF16 else floats.astype(np.float16).astype(np.float32)


def tensor(array: Array, dtype: DType, device: str) -> Tensor:
    found = Tensor(array, device=device)
    return found if dtype.is_int else found.cast(dtype).realize()


def agree(
    a: Array, b: Array, pair: tuple[DType, DType], device: str, turned: tuple[bool, bool] = (False, False)
) -> None:
    """a @ b, each of them given as it lies or turned."""
    left, right = (
        tensor(np.ascontiguousarray(np.swapaxes(x, -1, -2)) if turn else x, dtype, device)
        for x, dtype, turn in zip((a, b), pair, turned, strict=True)
    )
    left, right = (t.transpose(-1, -2) if turn else t for t, turn in zip((left, right), turned, strict=True))
    wide = dtypes.int32 if pair[0].is_int else dtypes.float32
    got = (left.cast(wide) @ right.cast(wide)).numpy()
    if wide is dtypes.int32:
        np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))
    else:
        with np.errstate(invalid="ignore"):
            want = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * max(1.0, float(np.nanmax(np.abs(want), initial=0.0,
                                   where=np.isfinite(want)))))  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("pair", [(BF16, BF16), (I8, I8)], ids=["bfloat16", "int8"])
def test_layouts_and_tails(sizes: tuple[int, int, int], turned: tuple[bool, bool], pair: tuple[DType, DType]) -> None:
    rows, inner, columns = sizes
    rng = np.random.default_rng(1)
    agree(values(rng, (rows, inner), pair[0]), values(rng, (inner, columns), pair[1]), pair, "LLVM", turned)


@pytest.mark.parametrize("pair", [(U8, I8), (I8, U8), (U8, U8), (F16, F16)], ids=str)
def test_other_types(pair: tuple[DType, DType]) -> None:
    rng = np.random.default_rng(2)
    agree(values(rng, (40, 100), pair[0]), values(rng, (100, 50), pair[1]), pair, "LLVM")


@pytest.mark.parametrize("pair", [(BF16, BF16), (I8, I8), (F16, F16)], ids=str)
def test_the_reference_device(pair: tuple[DType, DType]) -> None:
    rng = np.random.default_rng(3)
    agree(values(rng, (20, 70), pair[0]), values(rng, (70, 33), pair[1]), pair, "PYTHON")


@pytest.mark.parametrize("turned", [(False, False), (False, True)])
def test_batches(turned: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(4)
    agree(values(rng, (3, 40, 50), BF16), values(rng, (3, 50, 60), BF16), (BF16, BF16), "LLVM", turned)
    agree(values(rng, (2, 2, 17, 64), I8), values(rng, (2, 1, 64, 33), I8), (I8, I8), "LLVM", turned)


@pytest.mark.parametrize("pair", [(BF16, BF16), (I8, I8)], ids=["bfloat16", "int8"])
@pytest.mark.parametrize("turned", [(False, True), (True, False)])
def test_a_matrix_by_itself(pair: tuple[DType, DType], turned: tuple[bool, bool]) -> None:
    """Both panels of one buffer once had one name, and were one where they had one size."""
    for sizes in ((16, 64), (64, 64), (33, 128)):
        x = values(np.random.default_rng(7), sizes, pair[0])
        x_turned = np.ascontiguousarray(np.swapaxes(x, -1, -2))
        lies = tensor(x, pair[0], "LLVM")
        wide = dtypes.int32 if pair[0].is_int else dtypes.float32
        left, right = (lies.transpose(-1, -2) if turn else lies for turn in turned)
        a, b = (x_turned if turn else x for turn in turned)
        got = (left.cast(wide) @ right.cast(wide)).numpy()
        want = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * float(np.abs(want).max()))


@pytest.mark.parametrize("sizes", [(33, 70, 50), (32, 64, 32)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_operands_that_are_converted(sizes: tuple[int, int, int], turned: tuple[bool, bool], dtype: DType) -> None:
    rows, inner, columns = sizes
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((rows, inner), np.float32), rng.standard_normal((inner, columns), np.float32)
    wanted = [Tensor(x).cast(dtype).cast(dtypes.float32).numpy().astype(np.float64) for x in (a, b)]
    left, right = (
        (Tensor(np.ascontiguousarray(x.T)).cast(dtype).transpose(0, 1) if turn else Tensor(x).cast(dtype))
        for x, turn in zip((a, b), turned, strict=True)
    )
    got = (left.cast(dtypes.float32) @ right.cast(dtypes.float32)).numpy()
    np.testing.assert_allclose(got, wanted[0] @ wanted[1], rtol=2e-5, atol=2e-4)


def test_more_blocks_than_one_and_threads() -> None:
    rng = np.random.default_rng(5)
    agree(values(rng, (300, 129), BF16), values(rng, (129, 1100), BF16), (BF16, BF16), "LLVM")
    agree(values(rng, (1100, 129), I8), values(rng, (129, 70), I8), (I8, I8), "LLVM")


def test_not_a_number_and_infinities() -> None:
    rng = np.random.default_rng(6)
    a, b = values(rng, (33, 40), BF16), values(rng, (40, 35), BF16)
    a[3, 5], a[7, 1], b[2, 34] = np.nan, np.inf, -np.inf
    agree(a, b, (BF16, BF16), "LLVM")


def test_what_follows_the_product_stays_in_its_kernel() -> None:
    rng = np.random.default_rng(7)
    a, b, bias = values(rng, (50, 64), BF16), values(rng, (64, 70), BF16), values(rng, (70,), BF16)
    left, right, added = (tensor(x, BF16, "LLVM") for x in (a, b, bias))
    got = (left @ right + added).relu().float().numpy()
    want = np.maximum(round_bfloat16(round_bfloat16((a @ b).astype(np.float32)) + bias), 0)
    np.testing.assert_allclose(got, want, rtol=2**-7, atol=0.1)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("sizes", [(3, 272, 256, 64), (1, 263, 288, 64), (1, 128, 128, 32), (1, 260, 258, 64)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention(sizes: tuple[int, int, int, int], is_causal: bool, dtype: DType) -> None:
    """Weights are rounded before they are multiplied; here and there they are 0, or all of a row is one of them."""
    heads, tokens, keys, width = sizes
    rng = np.random.default_rng(13)
    q, k, v = (values(rng, (heads, n, width), dtype) for n in (tokens, keys, keys))
    q[:, 5] *= 32
    got = tensor(q, dtype, "LLVM").scaled_dot_product_attention(
        tensor(k, dtype, "LLVM"), tensor(v, dtype, "LLVM"), is_causal=is_causal
    )
    scores = np.asarray(q @ k.swapaxes(-1, -2) / np.sqrt(width), np.float64)
    scores = np.where(np.tri(tokens, keys, dtype=np.bool_), scores, -np.inf) if is_causal else scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(got.float().numpy(), weights @ v / weights.sum(-1, keepdims=True), rtol=2e-2, atol=6e-3)


@pytest.mark.parametrize("sizes", [(0, 32, 32), (32, 0, 32), (32, 32, 0), (1, 1, 1)])
def test_nothing_and_one(sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    rng = np.random.default_rng(8)
    agree(values(rng, (rows, inner), I8), values(rng, (inner, columns), I8), (I8, I8), "LLVM")


# --- a unit that work-items share: blocks are held by 32 of them together ---------------------------------------------
@pytest.fixture(params=["CL", "PYTHON"])
def shared(request: pytest.FixtureRequest, opencl: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a device; PYTHON computes whole blocks in every item."""
    put_in(monkeypatch)
    with Context(TARGET="mma", CACHE="0"):
        yield request.param


@pytest.mark.parametrize("pair", [(F16, F16), (BF16, BF16)], ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, True)])
def test_items_hold_blocks_together(pair: tuple[DType, DType], turned: tuple[bool, bool], shared: str) -> None:
    rows, inner, columns = (33, 70, 50) if shared == "CL" else (17, 36, 21)
    rng = np.random.default_rng(9)
    agree(values(rng, (rows, inner), pair[0]), values(rng, (inner, columns), pair[1]), pair, shared, turned)


@pytest.mark.parametrize("sizes", [(66, 40, 70), (64, 32, 64), (32, 16, 16), (16, 16, 8), (9, 9, 5)])
def test_items_of_many_steps(sizes: tuple[int, int, int], opencl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of an item, whole and with tails, and less than one step."""
    monkeypatch.setattr(importlib.import_module("kernmill.compiler.optimize.gpu"), "_STEPS", ((2, 2, 2, 2),))
    put_in(monkeypatch)
    rows, inner, columns = sizes
    rng = np.random.default_rng(10)
    with Context(TARGET="mma", CACHE="0"):
        agree(values(rng, (rows, inner), F16), values(rng, (inner, columns), F16), (F16, F16), "CL")


def test_items_and_what_is_not_a_number(shared: str) -> None:
    rng = np.random.default_rng(11)
    a, b = values(rng, (33, 20), BF16), values(rng, (20, 18), BF16)
    a[3, 5], a[7, 1], b[2, 17] = np.nan, np.inf, -np.inf
    agree(a, b, (BF16, BF16), shared)


def test_items_go_on_with_what_follows(shared: str) -> None:
    rng = np.random.default_rng(12)
    a, b, bias = (values(rng, shape, F16) for shape in ((3, 20, 32), (3, 32, 24), (24,)))
    left, right, added = (tensor(x, F16, shared).float() for x in (a, b, bias))
    np.testing.assert_allclose(((left @ right) * 2 + added).relu().numpy(), np.maximum(a @ b * 2 + bias, 0), atol=1e-3)


@pytest.mark.parametrize("device", ["LLVM", "PYTHON"])
def test_operands_that_lie_in_blocks(device: str) -> None:
    """Nothing is packed: blocks are read from the buffers."""
    rng = np.random.default_rng(5)
    a, b = values(rng, (2, 2, 16, 32), BF16), values(rng, (2, 32, 16, 2), BF16)
    left = tensor(a, BF16, device).permute(0, 2, 1, 3).reshape(32, 64)
    right = tensor(b, BF16, device).permute(0, 2, 1, 3).reshape(32, 64)
    want = left.float().numpy().astype(np.float64) @ right.float().numpy().astype(np.float64).T
    np.testing.assert_allclose((left.float() @ right.float().T).numpy(), want, rtol=1e-4, atol=1e-4)

"""Products of bfloat16 with the dot product instruction for its pairs and without it, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.ir import Context, dtypes, round_bfloat16
from kernmill.renderers import LLVMRenderer
from kernmill.runtime import get_device, plan

Array = np.ndarray[Any, Any]
PAIR = (dtypes.bfloat16, dtypes.bfloat16)
SIZES = [
    (64, 64, 64), (33, 70, 50), (17, 33, 17), (1, 256, 40), (3, 256, 33), (8, 40, 200), (200, 300, 9), (24, 512, 130),
    (16, 32, 1000), (7, 130, 70), (96, 2, 96), (50, 6, 20),
]  # fmt: skip


@pytest.fixture(params=[True, False], ids=["pairs", "converted"], autouse=True)
def _target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    device = get_device("LLVM")
    target = device.target
    if request.param and PAIR not in target.dots:
        pytest.skip("this CPU has no dot product instruction for bfloat16 that is worth it")
    if not request.param:
        less = replace(target, name=f"{target.name}-converted", dots=target.dots - {PAIR})
        monkeypatch.setattr(device, "_renderer", LLVMRenderer(less))
    with Context(DEVICE="LLVM", CACHE="0"):
        plan.plans.clear()
        yield
    plan.plans.clear()


def values(seed: int, *shape: int) -> Array:
    return round_bfloat16(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def tensor(array: Array) -> Tensor:
    return Tensor(np.ascontiguousarray(array)).cast(dtypes.bfloat16).realize()


def agree(got: Tensor, want: Array, terms: int) -> None:
    limit = 2e-6 * max(4.0, terms**0.5) * max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=limit)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)], ids=str)
def test_products(sizes: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    rows, inner, columns = sizes
    a, b = values(0, rows, inner), values(1, inner, columns)
    left, right = (tensor(x.T).T if turn else tensor(x) for x, turn in zip((a, b), turned, strict=True))
    want = a.astype(np.float64) @ b
    agree(left.float() @ right.float(), want, inner)
    rounded = (left @ right).float().numpy()
    np.testing.assert_allclose(rounded, want, rtol=2**-8, atol=2e-5 * inner)


@pytest.mark.parametrize("turned", [False, True])
def test_batches(turned: bool) -> None:
    a, b = values(2, 3, 40, 64), values(3, 3, 64, 70)
    right = tensor(b.swapaxes(-1, -2)).transpose(-1, -2) if turned else tensor(b)
    agree(tensor(a).float() @ right.float(), a.astype(np.float64) @ b, 64)


def test_not_a_number_infinities_and_zeros() -> None:
    a, b = values(4, 33, 64), values(5, 64, 40)
    a[3, 5], a[7, 1], b[2, 34], a[9] = np.nan, np.inf, -np.inf, -0.0
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float64) @ b
    got = (tensor(a).float() @ tensor(b).float()).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inner", [63, 64])
def test_a_row_beside_infinities_stays_finite(inner: int) -> None:
    """Terms behind the last are no terms: nothing is multiplied there that might be nan."""
    a, b = np.zeros((40, inner), np.float32), values(6, inner, 50)
    b[-1] = np.inf
    b[-1, 1:] = 1
    a[:, 0] = 1
    a[:, -1] = 2
    want = a.astype(np.float64) @ b
    np.testing.assert_allclose((tensor(a).float() @ tensor(b).float()).numpy(), want, rtol=1e-5)


def test_the_smallest_numbers_may_count_as_0() -> None:
    """What a product of them and larger ones loses is less than the least normal number."""
    a, b = np.full((32, 64), 1e-39, np.float32), values(7, 64, 48)
    got = (tensor(round_bfloat16(a)).float() @ tensor(b).float()).numpy()
    np.testing.assert_allclose(got, round_bfloat16(a).astype(np.float64) @ b, rtol=0, atol=64 * 2.0**-126 * 4)


def test_gradients() -> None:
    x, w, g = values(8, 48, 66), values(9, 66, 40), values(10, 48, 40)
    left, right = (tensor(v).requires_grad_() for v in (x, w))
    ((left @ right).float() * Tensor(g)).sum().backward()
    for found, want in ((left.grad, g @ w.T), (right.grad, x.T @ g)):
        assert found is not None
        np.testing.assert_allclose(found.float().numpy(), want, rtol=2**-7, atol=2e-2)

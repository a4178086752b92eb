"""float16 and bfloat16: kept in memory, computed in float32, rounded once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernmill.compiler import PIPELINE
from kernmill.ir import DType, Ops, UOp, dtypes, evaluate, round_bfloat16
from tests.compiler.kernels import SCALARS, VECTORS

Array = np.ndarray[Any, Any]
(decompose,) = [step.run for step in PIPELINE if step.name == "decompose"]
NARROW = [dtypes.float16, dtypes.bfloat16]


def leaf(dtype: DType) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (0, 1))


def all_bits() -> Array:
    return np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def test_every_bfloat16_becomes_the_right_float32() -> None:
    wide = (all_bits().astype(np.uint32) << 16).view(np.float32)
    root = decompose(leaf(dtypes.bfloat16).cast(dtypes.float32), VECTORS)
    np.testing.assert_array_equal(evaluate(root, {leaf(dtypes.bfloat16): wide}), wide)
    assert Ops.SHL in {n.op for n in root.toposort()}


def test_float32_is_rounded_to_the_nearest_bfloat16() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1 << 32, 200_000, np.uint32).view(np.float32)
    ties = ((rng.integers(0, 1 << 16, 5000).astype(np.uint32) << 16) | 0x8000).view(np.float32)
    values = np.concatenate([values, ties, np.array([np.nan, np.inf, -np.inf, 3.4e38, -0.0, 1e-45], np.float32)])
    root = decompose(leaf(dtypes.float32).cast(dtypes.bfloat16), VECTORS)
    got = evaluate(root, {leaf(dtypes.float32): values})
    with np.errstate(all="ignore"):
        want = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(round_bfloat16(values), want)


def test_float64_to_float16_is_rounded_once() -> None:
    rng = np.random.default_rng(2)
    halves = all_bits().view(np.float16).astype(np.float64)
    halves = halves[np.isfinite(halves)]
    near = np.concatenate([halves * (1 + s * 2.0**-k) for k in (11, 12, 24, 25, 40, 50) for s in (-1, 1)])
    values = np.concatenate(
        [near, rng.normal(0, 1e-5, 20_000), np.array([65519.999999, 65520.0, 1e300, -1e-300, np.inf, np.nan])]
    )
    root = decompose(leaf(dtypes.float64).cast(dtypes.float16), VECTORS)
    with np.errstate(all="ignore"):
        want = values.astype(np.float16)
    got = evaluate(root, {leaf(dtypes.float64): values})
    np.testing.assert_array_equal(got, want)
    assert not [n for n in root.toposort() if n.op is Ops.CAST and (n.src[0].dtype.bits, n.dtype.bits) == (64, 16)]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_arithmetic_is_in_float32(dtype: DType) -> None:
    x = leaf(dtype)
    root = decompose(x * x + x, VECTORS)
    assert {n.dtype for n in root.toposort() if n.op in (Ops.ADD, Ops.MUL) and n.dtype.is_float} == {dtypes.float32}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_where_a_target_computes_it_nothing_is_widened(dtype: DType) -> None:
    x = leaf(dtype)
    assert decompose(x * x, SCALARS) is x * x


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_comparisons_and_choices(dtype: DType) -> None:
    x = leaf(dtype)
    root = decompose((x < 0).where(x, x * 2), VECTORS)
    assert root.dtype is dtype
    values: Array = np.array([-1.5, 0.0, 2.0, np.nan], np.float16 if dtype is dtypes.float16 else np.float32)
    np.testing.assert_array_equal(evaluate(root, {x: values}), np.where(values < 0, values, values * 2))


BY_BITS = replace(VECTORS, storage_dtypes=frozenset(dtypes.data) - {dtypes.float16})


def test_every_float16_by_its_bits() -> None:
    """A CPU without the instruction would call a function that is not there (TARGET=sse)."""
    halves = all_bits().view(np.float16)
    root = decompose(leaf(dtypes.float16).cast(dtypes.float32), BY_BITS)
    assert not [n for n in root.toposort() if n.op is Ops.CAST and n.src[0].dtype is dtypes.float16]
    np.testing.assert_array_equal(evaluate(root, {leaf(dtypes.float16): halves}), halves.astype(np.float32))


def test_float32_to_float16_by_its_bits() -> None:
    rng = np.random.default_rng(3)
    halves = all_bits().view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        between = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
        values = np.concatenate([halves, between, np.nextafter(between, np.float32(np.inf)),
                                 rng.integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)])  # fmt: skip
        want = values.astype(np.float16)
    root = decompose(leaf(dtypes.float32).cast(dtypes.float16), BY_BITS)
    got = evaluate(root, {leaf(dtypes.float32): values})
    np.testing.assert_array_equal(got, want)
    number = want == want
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])

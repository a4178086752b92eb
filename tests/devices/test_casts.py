"""CAST between all pairs of dtypes, BITCAST between all pairs of one size, on every device against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernmill.ir import DType, Ops, assign, const, dtypes, evaluate, float_to_int, reshape, simplify
from kernmill.runtime import get_device, realize, upload
from tests.devices.arrays import Array, leaf, numpy_dtype, read, wide

finfo: Any = ml_dtypes.finfo


def values(dtype: DType) -> Array:
    """Corners, halfway cases, and ordinary values."""
    if dtype.is_bool:
        return np.array([False, True] * 20)
    rng = np.random.default_rng(dtype.bits)
    if dtype.is_int:
        low, high = int(dtype.min), int(dtype.max)
        corners = [
            low,
            low + 1,
            0,
            1,
            2,
            127,
            high - 1,
            high,
            *(min(high, v) for v in (255, 2049, 2051, 16777217, 2**53 + 1)),
        ]
        return np.concatenate([np.array(corners, dtype.name), rng.integers(low, high, 60, dtype.name, endpoint=True)])
    info = finfo(numpy_dtype(dtype))
    tiny, most = float(info.smallest_subnormal), float(info.max)
    points = [0.0, 0.4, 0.5, 1.0, 1.5, 2.5, 127.9, 255.0, 2049.0, 65504.0, 65519.0, 65520.0, 3e38, 1e300, 6e-8, 2.98e-8,
              1e-40, tiny, most, np.inf, np.nan, 1.00048828125, 1.0004882812500002, 1.0004882812499998]  # fmt: skip
    with np.errstate(over="ignore"):
        all_ = np.array([*points, *(-p for p in points), *rng.normal(0, 100, 60), *rng.normal(0, 1e-6, 20)])
        return all_.astype(numpy_dtype(dtype))


def held(array: Array, dtype: DType) -> Array:
    """Which floats an int dtype holds, or the signed one of 32 or 64 bits that it wraps from. Others are anything."""
    wide = dtypes.int64 if dtype.bits == 64 else dtypes.int32
    whole = np.trunc(array.astype(np.float64))
    return np.isfinite(whole) & (whole >= wide.min) & (whole < max(-float(wide.min), 1.0 + int(dtype.max)))


def wrapped(array: Array, dtype: DType) -> Array:
    """Floats as ints that wrap, which NumPy leaves to the machine."""
    whole = array.astype(np.float64)
    return np.where(whole < 2.0**63, whole, whole - 2.0**64).astype(np.int64).astype(dtype.name)


@pytest.mark.parametrize("source", dtypes.data, ids=str)
def test_cast(source: DType, device: str) -> None:
    given, roots = [], []
    for target in dtypes.data:
        array = values(source)
        if source.is_float and target.is_int:
            array = array[held(array, target)]
        given.append(array)
        roots.append(leaf(array, device).cast(target))
    realize([root for root in roots if root.storage is None])
    for target, array, root in zip(dtypes.data, given, roots, strict=True):
        with np.errstate(all="ignore"):
            want = wrapped(array, target) if source.is_float and target.is_int else array.astype(numpy_dtype(target))
        got, want = wide(read(root)), wide(want)
        np.testing.assert_array_equal(got, want, f"{source} to {target}")
        if target.is_float:
            number = want == want
            np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number], f"{source} to {target}")


@pytest.mark.parametrize("target", [d for d in dtypes.data if d.is_int], ids=str)
@pytest.mark.parametrize("source", [d for d in dtypes.data if d.is_float], ids=str)
def test_cast_out_of_range_does_no_harm(source: DType, target: DType, device: str) -> None:
    array = np.array([np.nan, np.inf, -np.inf, 3e4, -1.0] * 8, numpy_dtype(source))
    root = leaf(array, device).cast(target)
    realize([root])
    assert read(root).shape == (40,)


@pytest.mark.parametrize("target", [d for d in dtypes.data if d.is_int], ids=str)
@pytest.mark.parametrize("source", [d for d in dtypes.data if d.is_float], ids=str)
def test_cast_out_of_range_has_one_meaning(source: DType, target: DType, device: str) -> None:
    """Named regression: of nan LLVM made -2147483648 and PYTHON 0, which CHECK=1 called a bug of ours."""
    if device != "PYTHON" and get_device(device).target.instructions != "x86":
        pytest.skip("only instructions of x86 have this meaning")
    points = [np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64,
              2147483520.0, 4294967040.0, -2147483904.0, -1.0, 300.7, -300.7]  # fmt: skip
    with np.errstate(over="ignore"):  # in float16 the large ones are infinite
        array = np.array(points * 3).astype(numpy_dtype(source))
    x = leaf(array, device)
    root, constants = x.cast(target), [const(source, float(v)).cast(target) for v in array[:17]]
    realize([root])
    want = [float_to_int(target, float(v)) for v in array]
    assert read(root).tolist() == want
    assert evaluate(x.cast(target), {x.src[0] if x.op is Ops.RESHAPE else x: array}).tolist() == want
    assert [simplify(c).arg for c in constants] == want[:17]


def test_float64_to_float16_rounds_once(device: str) -> None:
    """By way of float32 it would be rounded twice, and LLVM would call a function that is not there."""
    array = np.array([1.00048828125 + k * 2.0**-45 for k in range(-20, 21)] + [2049.0000001, 2.9802322387695312e-08])
    root = leaf(array, device).cast(dtypes.float16)
    realize([root])
    np.testing.assert_array_equal(read(root), array.astype(np.float16))


SIZES = {bits: [d for d in dtypes.data if d.bits == bits] for bits in (8, 16, 32, 64)}
TWINS = [(a, b) for group in SIZES.values() for a in group for b in group if a is not b]


@pytest.mark.parametrize(("source", "target"), TWINS, ids=str)
def test_bitcast(source: DType, target: DType, device: str) -> None:
    array = values(source)
    want = array.view(numpy_dtype(target))
    with np.errstate(invalid="ignore"):
        number = (array == array) & (want == want)  # which bits a nan has is a machine's own business
    root = leaf(array, device).bitcast(target)
    realize([root])
    np.testing.assert_array_equal(read(root)[number].view(np.uint8), want[number].view(np.uint8))


def test_cast_in_the_middle_of_a_kernel(device: str) -> None:
    """Lanes of different width side by side in one kernel."""
    array = np.arange(-40, 41, dtype=np.int8)
    x = leaf(array, device)
    root = (x.cast(dtypes.float64) * 0.5).cast(dtypes.float32).cast(dtypes.int16).cast(dtypes.int64) + x.cast(
        dtypes.int64
    )
    realize([reshape(root, (3, 27))])
    realize([root])
    np.testing.assert_array_equal(read(root), (array * 0.5).astype(np.int16).astype(np.int64) + array)


@pytest.mark.parametrize("source", [dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int16], ids=str)
@pytest.mark.parametrize("target", [dtypes.int8, dtypes.int16, dtypes.bfloat16], ids=str)
def test_a_last_block_of_one_lane_writes_nothing_behind_it(source: DType, target: DType, device: str) -> None:
    """LLVM once wrote a narrowed value in the size that it had before, where a constant mask left one lane."""
    for count in (5, 9, 17, 33):
        kept = upload(np.full(count + 8, 3, np.int16), dtypes.int16, device).cast(target)
        realize([kept])
        x = leaf((np.arange(count) % 2).astype(source.name), device)
        realize([x])
        changed = assign(kept, x.cast(target), ((0, count, 1),))
        realize([changed])
        assert [*map(int, read(changed))] == [*(n % 2 for n in range(count)), *[3] * 8]

"""Python numbers as values of a dtype: wrapping, rounding, bit patterns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernmill.ir import DType, bits_of, dtypes, from_bits, to_dtype

NUMPY = [d for d in dtypes.data if d is not dtypes.bfloat16]


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
def test_bits_are_those_of_numpy(dtype: DType) -> None:
    for value in (0, 1, 3, 100) if not dtype.is_bool else (0, 1):
        number = to_dtype(dtype, value)
        raw = np.array(number, dtype.name).tobytes()
        assert bits_of(dtype, number) == int.from_bytes(raw, "little")
        assert from_bits(dtype, bits_of(dtype, number)) == number


@pytest.mark.parametrize("dtype", [d for d in NUMPY if d.is_int], ids=str)
def test_ints_wrap(dtype: DType) -> None:
    for value in (-1, 200, 1 << 40, -(1 << 63), (1 << 64) - 1):
        want = np.array(value & ((1 << 64) - 1), np.uint64).astype(dtype.name)
        assert to_dtype(dtype, value) == int(want)


def test_floats_to_ints() -> None:
    assert to_dtype(dtypes.int32, 2.9) == 2
    assert to_dtype(dtypes.int32, -2.9) == -2
    assert to_dtype(dtypes.int32, math.nan) == 0
    assert to_dtype(dtypes.uint8, math.inf) == 255
    assert to_dtype(dtypes.int8, -math.inf) == -128


def test_bfloat16() -> None:
    assert bits_of(dtypes.bfloat16, -2.0) == 0xC000
    assert from_bits(dtypes.bfloat16, 0x7F80) == math.inf
    assert to_dtype(dtypes.bfloat16, 1 + 2**-9) == 1.0


def test_negative_ints_have_the_bits_of_their_width() -> None:
    assert bits_of(dtypes.int16, -1) == 0xFFFF
    assert from_bits(dtypes.int16, 0xFFFF) == -1

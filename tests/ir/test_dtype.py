"""Types: one object each, limits, names, promotion."""

from __future__ import annotations

import pickle
from itertools import product
from typing import Any

import numpy as np
import pytest

from kernmill.ir import DType, DTypeError, as_dtype, dtypes, named_dtype, promote, round_float


def test_a_vector_type_is_one_object() -> None:
    assert dtypes.float32.vec(16) is dtypes.float32.vec(16)
    assert dtypes.float32.vec(16).vec(4) is dtypes.float32.vec(4)
    assert dtypes.float32.vec(16).vec(1) is dtypes.float32
    assert dtypes.float32.vec(16).scalar is dtypes.float32
    assert (dtypes.float32.vec(16).size_bytes, dtypes.bool.vec(4).size_bytes, dtypes.void.size_bytes) == (64, 4, 0)
    assert repr(dtypes.int8.vec(3)) == "int8x3"


@pytest.mark.parametrize(
    "dtype", [*dtypes.data, dtypes.index, dtypes.void, dtypes.index.vec(4), dtypes.uint8.vec(32)], ids=str
)
def test_names_and_pickles_come_back(dtype: DType) -> None:
    assert named_dtype(dtype.name) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


@pytest.mark.parametrize("dtype", [d for d in dtypes.data if d is not dtypes.bfloat16], ids=str)
def test_limits_and_sizes_are_those_of_numpy(dtype: DType) -> None:
    like = np.dtype(dtype.name)
    assert as_dtype(like) is dtype
    assert as_dtype(like.type) is dtype
    assert like.itemsize == dtype.size_bytes
    if dtype.is_int:
        assert (dtype.min, dtype.max) == (np.iinfo(like).min, np.iinfo(like).max)
    assert dtype.epsilon == (np.finfo(like).eps if dtype.is_float else 0)
    assert [dtype.is_float, dtype.is_int, dtype.is_bool] == [like.kind == "f", like.kind in "iu", like.kind == "b"]


@pytest.mark.parametrize("dtype", [dtypes.index, dtypes.void, dtypes.float32.vec(4), dtypes.float32.vec(0)], ids=str)
def test_types_of_the_compiler_are_none_of_a_tensor(dtype: DType) -> None:
    for like in (dtype, dtype.name):
        with pytest.raises(DTypeError, match=r"kernmill has no such dtype\. Use one of bool, int8"):
            as_dtype(like)


def test_tensors_have_the_types_of_data() -> None:
    assert all(as_dtype(like) is dtype for dtype in dtypes.data for like in (dtype, dtype.name))


def test_other_names() -> None:
    assert [as_dtype(name) for name in (float, int, bool)] == [dtypes.float32, dtypes.int64, dtypes.bool]


C_NAMES = {
    "half": "float16", "float": "float32", "double": "float64", "char": "int8", "short": "int16", "int": "int32",
    "long": "int64", "byte": "uint8", "uchar": "uint8", "ushort": "uint16", "uint": "uint32", "ulong": "uint64",
}  # fmt: skip


@pytest.mark.parametrize("name", C_NAMES)
def test_a_name_of_c_is_the_same_dtype_as_an_attribute_and_as_a_string(name: str) -> None:
    assert as_dtype(name) is getattr(dtypes, name) is as_dtype(C_NAMES[name])


def test_defaults_are_fixed() -> None:
    """Named regression: literals obeyed `dtypes.default_int = dtypes.int32`, and nothing else did."""
    space: Any = dtypes
    with pytest.raises(DTypeError) as raised:
        space.default_int = dtypes.int32
    assert str(raised.value) == (
        "dtypes.default_int = int32: the dtypes and defaults are fixed. Pass dtype=, or cast the result."
    )
    assert dtypes.default_int is dtypes.int64


@pytest.mark.parametrize(
    "name",
    ["float99", "float32xx", "float32x²", "x4", "", "complex", object()],
    ids=lambda name: repr(name).split(" at ")[0],
)
def test_an_unknown_name_lists_the_known_ones(name: object) -> None:
    with pytest.raises(DTypeError, match=r"kernmill has no such dtype\. Use one of bool, int8"):
        as_dtype(name)


def test_promotion_is_symmetric_and_idempotent() -> None:
    for a, b in product(dtypes.data, dtypes.data):
        assert promote(a, b) is promote(b, a)
        assert promote(a, promote(a, b)) is promote(a, b)
        assert promote(a, a) is a


def test_promotion_is_associative_within_a_family() -> None:
    families = [
        [d for d in dtypes.data if d.is_float],
        [d for d in dtypes.data if d.kind is dtypes.int8.kind or d.is_bool],
        [d for d in dtypes.data if d.kind is dtypes.uint8.kind or d.is_bool],
    ]
    for family in families:
        for a, b, c in product(family, repeat=3):
            assert promote(promote(a, b), c) is promote(a, promote(b, c))


def test_promotion_holds_the_values_of_both() -> None:
    for a, b in product(dtypes.data, dtypes.data):
        both = promote(a, b)
        if both.is_float or {a, b} & {dtypes.uint64}:
            continue  # a float stands for any int; nothing holds int64 and uint64
        assert both.min <= min(a.min, b.min)
        assert both.max >= max(a.max, b.max)


def test_promotion_by_name() -> None:
    rows = [
        (dtypes.float16, dtypes.bfloat16, dtypes.float32),
        (dtypes.int64, dtypes.float16, dtypes.float16),
        (dtypes.int8, dtypes.uint8, dtypes.int16),
        (dtypes.int16, dtypes.uint8, dtypes.int16),
        (dtypes.int64, dtypes.uint64, dtypes.int64),
        (dtypes.bool, dtypes.uint8, dtypes.uint8),
    ]
    for a, b, both in rows:
        assert promote(a, b) is both


def test_rounding_is_that_of_numpy() -> None:
    values = [0.1, 1 / 3, 65519.9, 65520.0, 1e-8, 6e-8, -2.5e-45, 3.4e38, 3.5e38, -1e300, 5e-324]
    for value in values:
        with np.errstate(all="ignore"):
            assert round_float(dtypes.float16, value) == float(np.float16(value))
            assert round_float(dtypes.float32, value) == float(np.float32(value))
        assert round_float(dtypes.float64, value) == value
    assert round_float(dtypes.bfloat16, 1 + 2**-8) == 1.0  # a tie goes to even
    assert round_float(dtypes.bfloat16, 1 + 3 * 2**-8) == 1 + 2**-6
    assert round_float(dtypes.bfloat16, 3.4e38) == float("inf")

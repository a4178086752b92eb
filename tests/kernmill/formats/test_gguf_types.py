"""The tables of types: whole, and each name once. The package's own table is compared in test_gguf.py."""

from __future__ import annotations

import struct

import pytest

from kernmill import FormatError, dtypes
from kernmill.formats.gguf_types import RETIRED, TYPES, ValueType, tensor_type


def test_the_table() -> None:
    assert sorted({*TYPES, *RETIRED}) == list(range(43))
    assert len({row.name for row in TYPES.values()}) == len(TYPES)
    for number, row in TYPES.items():
        assert tensor_type(row.name.lower()) is row
        assert row.number == number
        if row.dtype is not None:
            assert (row.values, row.size_bytes) == (1, row.dtype.size_bytes)
    assert tensor_type("F16").dtype is dtypes.float16
    assert tensor_type("Q6_K").nbytes((3, 512)) == 3 * 2 * 210


def test_no_such_type() -> None:
    with pytest.raises(FormatError, match=r"tensor type 'Q9': GGUF has no such type. It has F32, F16,"):
        tensor_type("Q9")


def test_codes_of_values() -> None:
    bits = {"8": 8, "16": 16, "32": 32, "64": 64, "BOOL": 8}
    for kind in set(ValueType) - {ValueType.STRING, ValueType.ARRAY}:
        assert (
            struct.calcsize(f"<{kind.code}") * 8
            == bits["BOOL" if kind is ValueType.BOOL else kind.name.lstrip("UINTFLOA")]
        ), kind

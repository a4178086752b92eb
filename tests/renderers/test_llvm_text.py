"""LLVM IR text: types, constants, and the writer of lines."""

from __future__ import annotations

import pytest

from kernmill.ir import Ops, UOp, const, dtypes
from kernmill.renderers import llvm_text


@pytest.mark.parametrize(
    ("dtype", "memory", "name"),
    [
        (dtypes.bool, False, "i1"), (dtypes.bool, True, "i8"), (dtypes.float16.vec(8), False, "<8 x half>"),
        (dtypes.bfloat16, False, "i16"), (dtypes.uint8.vec(4), True, "<4 x i8>"), (dtypes.float64, False, "double"),
    ],
)  # fmt: skip
def test_types(dtype: object, memory: bool, name: str) -> None:
    assert llvm_text.llvm_type(dtype, memory) == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (dtypes.bool, True, "true"), (dtypes.int8, -3, "-3"), (dtypes.float32, 1.0, "0x3FF0000000000000"),
        (dtypes.float16, 1.0, "0xH3C00"), (dtypes.int32.vec(2), (1, 2), "<i32 1, i32 2>"),
        (dtypes.int32.vec(4), 7, "splat (i32 7)"),
    ],
)  # fmt: skip
def test_constants(dtype: object, value: object, text: str) -> None:
    assert llvm_text.constant(dtype, value) == text  # type: ignore[arg-type]


def test_calls_are_declared_once() -> None:
    writer = llvm_text.Writer([])
    for _ in range(2):
        writer.define(writer.call("i32", "f", ("i32", 1)))
    assert writer.lines == ["  %v1 = call i32 @f(i32 1)", "  %v2 = call i32 @f(i32 1)"]
    assert list(writer.declarations) == ["i32 @f(i32)"]


def test_the_maximum_of_a_local_buffer_is_that_of_its_stores() -> None:
    kept = UOp(Ops.LOCAL, dtypes.uint8, (), ("t", 64))
    place = UOp(Ops.INDEX, dtypes.uint8, (kept, const(dtypes.index, 0)))
    store = UOp(Ops.STORE, dtypes.void, (place, const(dtypes.uint8, 15)))
    assert llvm_text.Writer([store]).most(UOp(Ops.LOAD, dtypes.uint8, (place,))) == 15

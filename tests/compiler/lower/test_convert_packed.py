"""Panels are kept in the type that their readers convert to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import DType, Ops, UOp, dtypes
from tests.compiler.kernels import VECTORS, close, data, inputs, matmul, only, run_ast, run_on
from tests.compiler.passes import after

PACKED = "vectorize i1 16; unroll i0 4; order i1 i0; stage 2 k0 i1.v"


def product(dtype: DType) -> UOp:
    """Operands of a narrow type, multiplied and added in float32."""
    left, right = data(0, 8, 32, dtype=dtype), data(1, 32, 48, dtype=dtype)
    return only(matmul(left.cast(dtypes.float32), right.cast(dtypes.float32)))


def panels(ast: UOp) -> list[DType]:
    return [node.dtype for node in ast.toposort() if node.op is Ops.LOCAL]


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16, dtypes.int8])
def test_a_panel_is_converted_when_it_is_packed(dtype: DType) -> None:
    ast = after("convert_packed", product(dtype), PACKED)
    assert panels(ast) == [dtypes.float32]
    (store,) = [node for node in ast.toposort() if node.op is Ops.STORE and node.src[0].dtype is dtypes.float32][:1]
    assert store.src[1].op is Ops.CAST


def test_a_panel_of_the_right_type_stays() -> None:
    ast = product(dtypes.float32)
    assert panels(after("convert_packed", ast, PACKED)) == [dtypes.float32]


def test_bytes_of_whole_sums_stay() -> None:
    left, right = data(0, 8, 32, dtype=dtypes.int8), data(1, 32, 48, dtype=dtypes.int8)
    ast = only(matmul(left.cast(dtypes.int32), right.cast(dtypes.int32)))
    assert panels(after("convert_packed", ast, PACKED)) == [dtypes.int8]


def test_a_panel_that_dots_read_stays() -> None:
    """Two terms of a sum have to be one word, in both operands."""
    pairs = replace(VECTORS, dots=frozenset({(dtypes.bfloat16, dtypes.bfloat16)}))
    words = "vectorize i1 16; unroll i0 4; unroll k0 2; order i1 i0; stage 2 k0 i1.v k0.u"
    assert panels(after("convert_packed", product(dtypes.bfloat16), words, pairs)) == [dtypes.bfloat16]
    assert panels(after("convert_packed", product(dtypes.bfloat16), words)) == [dtypes.float32]
    assert panels(after("convert_packed", product(dtypes.float16), words, pairs)) == [dtypes.float32]
    assert panels(after("convert_packed", product(dtypes.bfloat16), PACKED, pairs)) == [dtypes.float32]
    apart = words.replace("k0 i1.v k0.u", "k0 k0.u i1.v")
    assert panels(after("convert_packed", product(dtypes.bfloat16), apart, pairs)) == [dtypes.float32]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.int8])
@pytest.mark.parametrize("schedule", [PACKED, PACKED + "; stage 1 i0.u k0; vectorize k0'' 16"])
def test_values_stay(dtype: DType, schedule: str) -> None:
    ast = product(dtype)
    arrays = inputs(ast)
    arrays[1:] = [np.random.default_rng(n).integers(-9, 9, a.size).astype(a.dtype) for n, a in enumerate(arrays[1:])]
    close(run_on("LLVM", ast, arrays, parse_schedule(schedule)), run_ast(ast, arrays))

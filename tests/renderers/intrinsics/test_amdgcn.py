"""AMD's GPUs: four products of bytes are one instruction."""

from __future__ import annotations

import pytest

from kernmill.ir import DType, dtypes
from tests.compiler.kernels import data, matmul, only
from tests.renderers.test_amdgcn import assembly


@pytest.mark.parametrize("left", [dtypes.int8, dtypes.uint8], ids=str)
def test_products_of_bytes_are_one_instruction_for_four(left: DType) -> None:
    a, b = data(0, 256, 256, dtype=left), data(1, 256, 256, dtype=dtypes.int8)
    assert "v_dot4_i32_iu8" in assembly(only(matmul(a.cast(dtypes.int32), b.cast(dtypes.int32))))

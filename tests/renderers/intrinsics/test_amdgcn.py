"""AMD's GPUs: four products of bytes are one instruction, and the matrix unit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kernmill.ir import DType, dtypes
from kernmill.renderers import AMDRenderer
from kernmill.runtime import amd_target, llvm_codegen
from tests.compiler.kernels import lowered
from tests.compiler.tiles import product
from tests.renderers.test_amdgcn import assembly


@pytest.mark.parametrize("left", [dtypes.int8, dtypes.uint8], ids=str)
def test_products_of_bytes_are_one_instruction_for_four(left: DType) -> None:
    target = replace(amd_target.amd_target("gfx1100"), units=())
    text = AMDRenderer(target).render("k", lowered(product((256, 256, 256), (left, dtypes.int8)), target))
    assert "v_dot4_i32_iu8" in llvm_codegen.assembly(text, amd_target.amd_host("gfx1100"))


@pytest.mark.parametrize(
    ("left", "right", "name"),
    [
        (dtypes.float16, dtypes.float16, "v_wmma_f32_16x16x16_f16"),
        (dtypes.bfloat16, dtypes.bfloat16, "v_wmma_f32_16x16x16_bf16"),
        (dtypes.uint8, dtypes.int8, "v_wmma_i32_16x16x16_iu8"),
    ],
    ids=str,
)
def test_products_of_many_rows_use_the_matrix_unit(left: DType, right: DType, name: str) -> None:
    text = assembly(product((256, 256, 256), (left, right)))
    assert name in text
    assert re.search(r"\.vgpr_spill_count:\s+0\b", text)

"""NVIDIA's GPUs: aligned vectors, and the matrix unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernmill.ir import DType, dtypes
from kernmill.renderers import PTXRenderer
from kernmill.runtime import cuda_target
from tests.compiler.kernels import data, lowered, only
from tests.compiler.tiles import product
from tests.renderers.test_ptx import assembled, ptx


def test_vectors_promise_their_alignment() -> None:
    target = cuda_target.cuda_target(90)
    text = PTXRenderer(target).render("k", lowered(only(data(0, 1 << 16) + 1.0), target))
    assert "load <4 x float>" in text
    assert "align 16" in text


@pytest.mark.parametrize("generation", [75, 80, 90, 100])
@pytest.mark.parametrize(
    ("left", "right", "name"),
    [
        (dtypes.float16, dtypes.float16, "m16n8k16.row.col.f32.f16.f16.f32"),
        (dtypes.bfloat16, dtypes.bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32"),
        (dtypes.int8, dtypes.int8, "m16n8k32.row.col.s32.s8.s8.s32"),
        (dtypes.uint8, dtypes.int8, "m16n8k32.row.col.s32.u8.s8.s32"),
    ],
    ids=str,
)
def test_products_of_many_rows_use_the_matrix_unit(
    left: DType, right: DType, name: str, generation: int, tmp_path: Path
) -> None:
    """From sm_80 on; and NVIDIA's assembler takes all of them."""
    text = ptx(product((2048, 2048, 2048), (left, right)), generation)
    assert (name in text) is (generation >= 80)
    assembled(text, generation, tmp_path)

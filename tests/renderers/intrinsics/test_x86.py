"""x86-64: the sizes of tables, and a matrix unit that is emulated or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.ir import Ops, UOp, const, dtypes
from kernmill.renderers import LLVMRenderer
from tests.compiler.kernels import VECTORS, lowered
from tests.compiler.tiles import TILES, product


@pytest.mark.parametrize(
    ("lanes", "name"), [(16, "ssse3.pshuf.b.128"), (32, "avx2.pshuf.b"), (64, "avx512.pshuf.b.512")]
)
def test_tables(lanes: int, name: str) -> None:
    kind = dtypes.int8.vec(lanes)
    index = const(dtypes.uint8.vec(lanes), 3)
    text = LLVMRenderer(VECTORS).render("k", [index, UOp(Ops.TABLE, kind, (index,), tuple(range(16)))])
    assert f"@llvm.x86.{name}(" in text


def test_a_matrix_unit_is_configured_and_put_back() -> None:
    uops = lowered(product((64, 128, 64)), TILES)
    text = LLVMRenderer(TILES).render("k", uops)
    assert text.count("call void @llvm.x86.ldtilecfg(") == 2
    assert "tdpbf16ps" in text
    emulated = LLVMRenderer(replace(TILES, emulates_units=True)).render("k", uops)
    assert "@llvm.x86.ldtilecfg" not in emulated
    assert "define internal void @tdpbf16ps(" in emulated

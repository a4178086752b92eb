"""Kernels for GPUs as LLVM IR: what NVIDIA's and AMD's have in common."""

from __future__ import annotations

import pytest

from kernmill.ir import CompileError, Ops, Target, UOp, const, dtypes
from kernmill.renderers import AMDRenderer, LLVMRenderer, PTXRenderer
from kernmill.runtime import amd_target, cuda_target
from tests.compiler.kernels import data, lowered, matmul, only

GPUS = [(PTXRenderer, cuda_target.cuda_target(90)), (AMDRenderer, amd_target.amd_target("gfx1100"))]


@pytest.mark.parametrize(("renderer", "target"), GPUS, ids=["ptx", "amd"])
def test_addresses_keep_the_number_of_their_memory(renderer: type[LLVMRenderer], target: Target) -> None:
    ast = only(matmul(data(0, 256, 256), data(1, 256, 256)))
    text = renderer(target).render("k", lowered(ast, target))
    assert "load <2 x float>, ptr addrspace(3)" in text or "load float, ptr addrspace(3)" in text
    assert "ptr addrspace(1) noalias" in text
    assert "addrspacecast" not in text


@pytest.mark.parametrize(("renderer", "target"), GPUS, ids=["ptx", "amd"])
def test_an_array_that_no_work_item_has_room_for(renderer: type[LLVMRenderer], target: Target) -> None:
    zero = const(dtypes.int64, 0)
    memory = UOp(Ops.LOCAL, dtypes.float32, (), ("rows", 1 << 20))
    with pytest.raises(CompileError, match=r"^kernel k: an array of 4,194,304 bytes in each work-item; a GPU takes "):
        renderer(target).render("k", [zero, memory])

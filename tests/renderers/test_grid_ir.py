"""Kernels for GPUs as LLVM IR: what NVIDIA's and AMD's have in common."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill.ir import CompileError, DType, Ops, Target, UOp, const, dtypes, round_bfloat16
from kernmill.renderers import AMDRenderer, LLVMRenderer, PTXRenderer, signature
from kernmill.runtime import amd_target, cuda_target
from tests.compiler.kernels import close, data, inputs, lowered, matmul, only, run_ast
from tests.compiler.tiles import product
from tests.renderers.grid_threads import run_grid

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


PRODUCTS = [(dtypes.float16, dtypes.float16), (dtypes.bfloat16, dtypes.bfloat16), (dtypes.int8, dtypes.int8),
            (dtypes.uint8, dtypes.int8)]  # fmt: skip


@pytest.mark.parametrize("pair", PRODUCTS, ids=str)
@pytest.mark.parametrize("sizes", [(64, 64, 64), (50, 70, 90), (96, 32, 40)], ids=str)
@pytest.mark.parametrize(("renderer", "target"), GPUS, ids=["ptx", "amd"])
def test_products_by_the_matrix_unit_are_right(
    renderer: type[LLVMRenderer], target: Target, sizes: tuple[int, int, int], pair: tuple[DType, DType]
) -> None:
    """The text for the GPU, with a thread of this CPU for each work-item."""
    ast = product(sizes, pair)
    uops = lowered(ast, target)
    assert any(u.op is Ops.MMA for u in uops)
    arrays = inputs(ast)
    if pair[0] is dtypes.bfloat16:  # NumPy has none: the kernel reads the upper halves
        arrays[1:] = [round_bfloat16(array) for array in arrays[1:]]
    out, *given = [np.array(array) for array in arrays]
    if pair[0] is dtypes.bfloat16:
        given = [(array.view(np.uint32) >> 16).astype(np.uint16) for array in given]
    out[:] = 77  # no result
    about = signature(uops)
    run_grid(renderer(target).render("k", uops), [out, *given], pair, about.group, about.threads // about.group)
    close(out, run_ast(ast, arrays))

"""AMD's GPUs: kernels through LLVM, which is also the assembler. No such GPU runs them."""

from __future__ import annotations

import re

import pytest

from kernmill.ir import UOp
from kernmill.renderers import AMDRenderer
from kernmill.runtime import amd_target, llvm_codegen
from tests.compiler.kernels import data, lowered, matmul, only, small_kernels

KERNELS = small_kernels()


def assembly(ast: UOp) -> str:
    target = amd_target.amd_target("gfx1100")
    text = AMDRenderer(target).render("k", lowered(ast, target))
    return llvm_codegen.assembly(text, amd_target.amd_host("gfx1100"))


@pytest.mark.parametrize("name", KERNELS)
def test_llvm_makes_code_of_every_kernel(name: str) -> None:
    text = assembly(KERNELS[name])
    assert ".amdhsa_kernel k" in text
    assert re.search(r"\.vgpr_spill_count:\s+0\b", text), "registers are in memory"
    assert "s_swappc" not in text, "a function of a library"


def test_groups_share_memory_and_wait() -> None:
    text = assembly(only(matmul(data(0, 256, 256), data(1, 256, 256))))
    assert "s_barrier" in text
    assert "ds_load" in text
    assert "global_load" in text
    assert "flat_load" not in text, "the address space is lost"
    assert int(re.findall(r"\.vgpr_count:\s+(\d+)", text)[0]) <= 128

"""Kernels for AMD's GPUs, which LLVM compiles to their instructions.

Source: LLVM, "User Guide for AMDGPU Backend": address spaces, intrinsics, the memory model of a group.
"""

from __future__ import annotations

from kernmill.ir import UOp

from .grid_ir import GridFunction
from .llvmir import LLVMFunction, LLVMRenderer
from .mma import Share, held_amd

__all__ = ["AMDRenderer"]


class AMDRenderer(LLVMRenderer):
    """Text for llvmlite's parser, for the triple amdgcn-amd-amdhsa."""

    @property
    def function(self) -> type[LLVMFunction]:
        """The writer of a kernel."""
        return AMDFunction


class AMDFunction(GridFunction):
    """The text of one kernel under construction."""

    convention = "amdgpu_kernel"
    item_register = "llvm.amdgcn.workitem.id.x"
    group_register = "llvm.amdgcn.workgroup.id.x"
    private_space = 5

    def shares(self, u: UOp) -> tuple[Share, Share, Share]:
        return held_amd(u.arg[2] * u.src[0].dtype.scalar.size_bytes // 4)

    def group_attribute(self, items: int) -> str:
        return f'"amdgpu-flat-work-group-size"="{items},{items}"'

    def wait(self) -> None:
        self.emit('fence syncscope("workgroup") release')
        self.emit(self.call("void", "llvm.amdgcn.s.barrier"))
        self.emit('fence syncscope("workgroup") acquire')

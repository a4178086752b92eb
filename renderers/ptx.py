"""Kernels for NVIDIA's GPUs, which LLVM compiles to PTX."""

from __future__ import annotations

from kernmill.ir import UOp

from .grid_ir import GridFunction
from .llvmir import LLVMFunction, LLVMRenderer
from .mma import HELD, Share

__all__ = ["PTXRenderer"]


class PTXRenderer(LLVMRenderer):
    """Text for llvmlite's parser, for the triple nvptx64."""

    @property
    def function(self) -> type[LLVMFunction]:
        """The writer of a kernel."""
        return PTXFunction


class PTXFunction(GridFunction):
    """The text of one kernel under construction."""

    convention = "ptx_kernel"
    item_register = "llvm.nvvm.read.ptx.sreg.tid.x"
    group_register = "llvm.nvvm.read.ptx.sreg.ctaid.x"

    def shares(self, u: UOp) -> tuple[Share, Share, Share]:
        return HELD

    def group_attribute(self, items: int) -> str:
        return f'"nvvm.reqntid"="{items}"'

    def wait(self) -> None:
        self.emit(self.call("void", "llvm.nvvm.barrier.cta.sync.aligned.all", ("i32", 0)))

"""The text: linear UOps to source text. A renderer decides nothing (docs/how-to/add-a-renderer.md)."""

if __name__ != "kernmill.renderers":
    raise ImportError("import kernmill.renderers, not renderers: the bare name would load a second copy")

from typing import TYPE_CHECKING

from kernmill.ir import lazy_exports

if TYPE_CHECKING:
    from . import llvm_text as llvm_text
    from .amdgcn import *
    from .amx import *
    from .base import *
    from .grid_ir import *
    from .intrinsics.aarch64 import *
    from .llvmir import *
    from .mma import *
    from .opencl import *
    from .opencl_values import *
    from .ptx import *
    from .python import *

__getattr__, __dir__ = lazy_exports(
    __name__, "base", "amx", "llvmir", "intrinsics.aarch64", "python", "opencl_values", "mma", "opencl", "grid_ir",
    "ptx", "amdgcn",  # what the CPU needs is first: a name is searched by importing one after the other
    by_name=("llvm_text",)
)  # fmt: skip

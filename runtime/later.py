"""Modules of this folder that only compiling, searching and reporting need: imported when first asked for.

A program whose plans and kernels are all in the cache uses none of them, nor the compiler that they import
(docs/decisions/0034-known-graphs.md). `later.compiling.render` is typed as `compiling.render` would be.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import check as check
    from . import compiling as compiling
    from . import llvm_process as llvm_process
    from . import profile as profile
    from . import tune as tune


def __getattr__(name: str) -> ModuleType:
    return import_module(f".{name}", __package__)

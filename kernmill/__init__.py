"""kernmill: a tensor compiler."""

from pathlib import Path as _Path

_here = _Path(__file__).resolve().parent
if not (_here / "ir").is_dir():  # a checkout: the sub-packages stand beside this folder, in a wheel they are in it
    __path__.append(str(_here.parent))

from kernmill.ir import CompileError as CompileError
from kernmill.ir import (
    Context,
    DeviceError,
    DType,
    DTypeError,
    FormatError,
    GradientError,
    IndexRangeError,
    InternalError,
    KernmillError,
    OutOfMemoryError,
    SettingError,
    ShapeError,
    dtypes,
)

from . import nn as nn
from .contraction import einsum
from .elementwise import where
from .jit import jit
from .lazy import no_grad, train
from .movement import cat, meshgrid, stack
from .random import manual_seed
from .tensor import Tensor
from .variable import Variable

__all__ = [
    "CompileError",
    "Context",
    "DType",
    "DTypeError",
    "DeviceError",
    "FormatError",
    "GradientError",
    "IndexRangeError",
    "InternalError",
    "KernmillError",
    "OutOfMemoryError",
    "SettingError",
    "ShapeError",
    "Tensor",
    "Variable",
    "cat",
    "dtypes",
    "einsum",
    "jit",
    "manual_seed",
    "meshgrid",
    "nn",
    "no_grad",
    "stack",
    "train",
    "where",
]

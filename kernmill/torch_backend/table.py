"""The table of ATen operators: a function of tensors for each, with ATen's arguments.

A result is cast to the dtype that PyTorch's trace says, so a function need not promote as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from kernmill.ir import DType, dtypes

__all__ = ["OPERATORS", "aten", "dtype_of"]

Function = TypeVar("Function", bound=Callable[..., Any])
OPERATORS: dict[str, Callable[..., Any]] = {}  # by the name of an overload: aten.add.Tensor

_DTYPES: dict[Any, DType] = {
    torch.bool: dtypes.bool, torch.uint8: dtypes.uint8, torch.int8: dtypes.int8, torch.int16: dtypes.int16,
    torch.int32: dtypes.int32, torch.int64: dtypes.int64, torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16, torch.float32: dtypes.float32, torch.float64: dtypes.float64,
    torch.uint16: dtypes.uint16, torch.uint32: dtypes.uint32, torch.uint64: dtypes.uint64,
}  # fmt: skip


def aten(*names: str) -> Callable[[Function], Function]:
    """Put a function into the table, under `name.overload`, each of the namespace aten."""

    def put(function: Function) -> Function:
        OPERATORS.update({f"aten.{name}": function for name in names})
        return function

    return put


def dtype_of(kind: Any) -> DType | None:
    """The dtype of a dtype of PyTorch; None if there is none."""
    return _DTYPES.get(kind)

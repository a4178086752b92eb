"""Arrays of every dtype to a device and back: NumPy's dtypes, and bfloat16, which is ml_dtypes'."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kernmill.ir import DType, UOp, as_dtype, dtypes, reshape
from kernmill.runtime import download, upload

Array = np.ndarray[Any, Any]


def numpy_dtype(dtype: DType) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if dtype is dtypes.bfloat16 else np.dtype(dtype.name)


def leaf(array: Array, device: str) -> UOp:
    """An array on the device, in its shape and dtype."""
    dtype, flat = as_dtype(array.dtype), np.ascontiguousarray(array).reshape(-1)
    return reshape(upload(flat.view(np.uint16) if dtype is dtypes.bfloat16 else flat, dtype, device), array.shape)


def read(root: UOp) -> Array:
    """The values of what is computed."""
    found: Array = np.array(download(root)).reshape(root.shape)
    return found.view(ml_dtypes.bfloat16) if root.dtype is dtypes.bfloat16 else found


def wide(array: Array) -> Array:
    """What NumPy's comparison knows nan of."""
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array

"""Arrays from data, numbers and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernmill.ir import DType, ShapeError, dtypes

from ..complex_tensor import ComplexTensor
from ..tensor import Tensor
from .dtypes import Array, astype, is_complex, plane

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace", "meshgrid",
    "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip

Shape = int | Sequence[int]


def asarray(obj: Any, /, *, dtype: DType | None = None, device: str | None = None, copy: bool | None = None) -> Array:
    """An array of numbers, nested lists, buffers or another library's array.

    Raises:
        ValueError: copy=False, of other data than tensors or in another dtype.
    """
    if isinstance(obj, (Tensor, ComplexTensor)):
        if copy is False and (dtype is not None and dtype is not obj.dtype):
            raise ValueError(f"asarray: {obj.dtype.name} as {dtype} needs a copy, and copy=False.")
        made: Array = obj if dtype is None or dtype is obj.dtype else astype(obj, dtype, copy=False)
        made = made if device is None else made.to(device)
        return made.clone() if copy else made
    if copy is False:
        raise ValueError(f"asarray: a {type(obj).__name__} needs a copy, and copy=False.")
    if dtype is not None and is_complex(dtype):
        return ComplexTensor(obj, dtype=dtype, device=device)
    import numpy as np

    is_own = hasattr(obj, "dtype")
    array = np.asarray(obj)
    if array.dtype.kind == "c":
        return ComplexTensor(array if is_own else obj, dtype=dtype, device=device)
    return Tensor(array if is_own or isinstance(obj, memoryview) else obj, dtype, device)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Array:
    """An array of another library by DLPack."""
    return Tensor.from_dlpack(x, device=device, copy=copy)


def full(shape: Shape, fill_value: Any, *, dtype: DType | None = None, device: str | None = None) -> Array:
    """One value everywhere."""
    if isinstance(fill_value, complex) or (dtype is not None and is_complex(dtype)):
        own = plane(dtype or dtypes.complex64)
        number = complex(fill_value)
        return ComplexTensor(
            Tensor.full(shape, number.real, dtype=own, device=device),
            Tensor.full(shape, number.imag, dtype=own, device=device),
        )
    return Tensor.full(shape, fill_value, dtype=dtype, device=device)


def full_like(x: Array, /, fill_value: Any, *, dtype: DType | None = None, device: str | None = None) -> Array:
    """One value in the shape of an array."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros(shape: Shape, *, dtype: DType | None = None, device: str | None = None) -> Array:
    """Zeros."""
    return full(shape, 0, dtype=dtype or dtypes.default_float, device=device)


def ones(shape: Shape, *, dtype: DType | None = None, device: str | None = None) -> Array:
    """Ones."""
    return full(shape, 1, dtype=dtype or dtypes.default_float, device=device)


def empty(shape: Shape, *, dtype: DType | None = None, device: str | None = None) -> Array:
    """Values that do not matter: zeros."""
    return zeros(shape, dtype=dtype, device=device)


def zeros_like(x: Array, /, *, dtype: DType | None = None, device: str | None = None) -> Array:
    """Zeros in the shape of an array."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Array, /, *, dtype: DType | None = None, device: str | None = None) -> Array:
    """Ones in the shape of an array."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Array, /, *, dtype: DType | None = None, device: str | None = None) -> Array:
    """Values that do not matter in the shape of an array: zeros."""
    return zeros_like(x, dtype=dtype, device=device)


def arange(start: float, /, stop: float | None = None, step: float = 1, *, dtype: DType | None = None,
           device: str | None = None) -> Array:  # fmt: skip
    """start, start + step, .. below stop."""
    if dtype is not None and is_complex(dtype):
        return ComplexTensor(Tensor.arange(start, stop, step, dtype=plane(dtype), device=device))
    return Tensor.arange(start, stop, step, dtype=dtype, device=device)


def linspace(start: complex, stop: complex, /, num: int, *, dtype: DType | None = None, device: str | None = None,
             endpoint: bool = True) -> Array:  # fmt: skip
    """Values from start to stop, evenly spaced."""
    if isinstance(start, complex) or isinstance(stop, complex) or (dtype is not None and is_complex(dtype)):
        first, last, own = complex(start), complex(stop), plane(dtype or dtypes.complex64)
        parts = [
            Tensor.linspace(a, b, num, dtype=own, device=device, endpoint=endpoint)
            for a, b in ((first.real, last.real), (first.imag, last.imag))
        ]
        return ComplexTensor(*parts)
    return Tensor.linspace(start, stop, num, dtype=dtype or dtypes.default_float, device=device, endpoint=endpoint)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType | None = None,
        device: str | None = None) -> Array:  # fmt: skip
    """Ones on the k-th diagonal."""
    own = dtype or dtypes.default_float
    made = Tensor.eye(n_rows, n_cols, k=k, dtype=plane(own), device=device)
    return ComplexTensor(made) if is_complex(own) else made


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Coordinates of a grid, of vectors along each axis."""
    if not arrays:
        return []
    if any(a.ndim > 1 for a in arrays):
        raise ShapeError("meshgrid: arrays of more than one axis. Give vectors.")
    shape = [a.shape[0] if a.ndim else 1 for a in arrays]
    grids: list[Array] = []
    for number, a in enumerate(arrays):
        own = a.reshape([s if i == number else 1 for i, s in enumerate(shape)]).expand(shape)
        is_turned = indexing == "xy" and len(arrays) > 1
        grids.append(own.permute((1, 0, *range(2, len(shape)))) if is_turned else own)
    return grids


def tril(x: Array, /, *, k: int = 0) -> Array:
    """The lower triangle, up to the k-th diagonal."""
    return x.tril(k)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """The upper triangle, from the k-th diagonal."""
    return x.triu(k)

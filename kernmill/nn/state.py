"""Weights in files: tensors to and from the safetensors format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kernmill.ir import DType, DTypeError, FormatError, dtypes, reshape
from kernmill.runtime import upload

from ..formats import safetensors
from ..lazy import device_name
from ..tensor import Tensor
from .module import Module

__all__ = ["load", "load_metadata", "save"]


def save(
    path: str | os.PathLike[str], state: Module | Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name, or all those of a module, into a safetensors file, which replaces one that is there.

    Raises:
        FormatError: the file cannot be written.
        DTypeError: something that is no tensor.
    """
    tensors = state.state_dict() if isinstance(state, Module) else dict(state)
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise DTypeError(f"save: {name!r} is a {type(tensor).__name__}. Give tensors; wrap data in Tensor(..).")
    if tensors:
        first, *others = tensors.values()
        first.realize(*others)
    safetensors.write(path, {n: (t.dtype, t.shape, _bytes(t)) for n, t in tensors.items()}, metadata)


def load(path: str | os.PathLike[str], device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name.

    On a device that works on the host's memory they lie in the file's own pages, without a copy, read when used.

    Raises:
        FormatError: the file is not there, or its bytes are not what they claim; the message names the field.
    """
    file = safetensors.read(path)
    return {name: _tensor(file, entry, device, os.fspath(path)) for name, entry in file.entries.items()}


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The texts that were saved beside the tensors.

    Raises:
        FormatError: as `load`.
    """
    return safetensors.read(path).metadata


def _storage_name(dtype: DType) -> str:
    """The NumPy dtype that holds the values, little-endian as in the file."""
    return {"bfloat16": "uint16", "bool": "uint8"}.get(dtype.name, dtype.name)


def _bytes(tensor: Tensor) -> memoryview:
    import numpy as np

    tensor = tensor.detach()
    tensor = tensor.bitcast(dtypes.uint16) if tensor.dtype is dtypes.bfloat16 else tensor
    array = np.ascontiguousarray(tensor.numpy())
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    raw: Any = array.reshape(-1).view(np.uint8)
    return memoryview(raw)


def _tensor(file: safetensors.File, entry: safetensors.Entry, device: str | None, where: str) -> Tensor:
    import numpy as np

    stored = np.dtype(_storage_name(entry.dtype))
    raw: Any = np.frombuffer(file.values(entry.name), np.uint8)
    if raw.ctypes.data % stored.itemsize:
        raw = raw.copy()
    array = raw.view(stored.newbyteorder("<")).astype(stored, copy=False)
    if entry.dtype.is_bool:
        if array.size and array.max() > 1:
            raise FormatError(
                f"{where}: tensor {entry.name!r}: a BOOL is {array.max()}, not 0 or 1. The file is damaged."
            )
        array = array.view(np.bool_)
    place = device_name(device)
    node = reshape(upload(array, entry.dtype, place, borrow=True), entry.shape)
    return Tensor._make(node, place)

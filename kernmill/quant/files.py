"""Tensors of GGUF files: from their bytes, as copies or mapped, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kernmill.ir import DTypeError, FormatError, dtypes

from ..formats import gguf, gguf_write
from ..formats.gguf_types import TYPES, TensorType
from ..formats.quoting import quoted
from ..tensor import Tensor
from ..tensor_bytes import bytes_of, tensor_over
from .registry import BLOCKS
from .tensor import QuantizedTensor

__all__ = ["load", "load_tensor", "save"]

_PLAIN = {kind.dtype: kind for kind in TYPES.values() if kind.dtype is not None}


def load_tensor(
    file: gguf.GGUFFile, name: str, device: str | None = None, *, copied: bool = False
) -> Tensor | QuantizedTensor:
    """One tensor of a file: plain values as a Tensor, blocks as a QuantizedTensor.

    On a device with host memory it uses the pages of the file, which `gguf.read` has mapped: they are read when used,
    and the file must not be truncated meanwhile. With `copied` it is a copy.

    Raises:
        FormatError: the file has no such tensor, or it is of a type that kernmill cannot read.
    """
    entry = file.entries.get(name)
    if entry is None:
        raise FormatError(
            f"{file.where}: it has no tensor {quoted(name)}. The model is not complete; convert it again."
        )
    if entry.type.dtype is not None:
        return tensor_over(file.values(name), entry.type.dtype, entry.shape, device, borrow=not copied)
    if entry.type.name not in BLOCKS:
        raise FormatError(
            f"{file.where}: tensor {quoted(name)} is of type {entry.type.name}, which is for computation only and "
            f"may not be stored in files. kernmill reads {', '.join(BLOCKS)}."
        )
    data = tensor_over(file.values(name), dtypes.uint8, (entry.stop - entry.start,), device, borrow=not copied)
    return QuantizedTensor(data, entry.type.name, entry.shape)


def load(
    path: str | os.PathLike[str], device: str | None = None, *, mmap: bool = False
) -> dict[str, Tensor | QuantizedTensor]:
    """Return all tensors of a GGUF file, or of a split one, by name. They are copies, unless `mmap=True`.

    With `mmap=True` they use the pages of the file, which must not be truncated while a tensor is alive.

    Raises:
        FormatError: the file does not exist, is damaged, or has a type that cannot be read.
    """
    file = gguf.read(path)
    found: dict[str, Tensor | QuantizedTensor] = {}
    for name in file.entries:
        found[name] = load_tensor(file, name, device, copied=not mmap)
        if not mmap:
            file.release(name)
    return found


def save(path: str | os.PathLike[str], tensors: Mapping[str, Tensor | QuantizedTensor],
         metadata: Mapping[str, Any]) -> None:  # fmt: skip
    """Write a GGUF file, which replaces one that is there. Metadata: as `formats.gguf_write.write` takes them.

    Raises:
        FormatError: the file cannot be written; a value that GGUF cannot store; interleaved rows.
        DTypeError: a dtype that GGUF does not have, or a value that is not a tensor.
    """
    new = {name: gguf_write.NewTensor(*_stored(name, tensor)) for name, tensor in tensors.items()}
    gguf_write.write(path, metadata, new)


def _stored(name: str, tensor: Tensor | QuantizedTensor) -> tuple[TensorType, tuple[int, ...], gguf_write.Values]:
    if isinstance(tensor, QuantizedTensor):
        data = tensor.data
        if tensor.interleave > 1:
            raise FormatError(
                f"save: tensor {quoted(name)} has {tensor.interleave} rows interleaved, a layout that no file "
                "stores. Give the tensor that interleaved() was called on.")  # fmt: skip
        return tensor.type.type, tensor.shape, lambda: [bytes_of(data)]
    if not isinstance(tensor, Tensor):
        raise DTypeError(f"save: tensor {quoted(name)} is of type {type(tensor).__name__}. Give a Tensor or a "
                         "QuantizedTensor; wrap data in Tensor(..).")  # fmt: skip
    if tensor.dtype not in _PLAIN:
        raise DTypeError(f"save: tensor {quoted(name)} is {tensor.dtype.name}, which GGUF does not have. Cast it to "
                         f"one of {', '.join(dtype.name for dtype in _PLAIN)}.")  # fmt: skip
    return _PLAIN[tensor.dtype], tensor.shape, lambda: [bytes_of(tensor)]

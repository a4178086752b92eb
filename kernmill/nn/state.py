"""Weights in files: tensors to and from the safetensors format."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kernmill.ir import DTypeError, FormatError

from ..arguments import with_sentences
from ..formats import safetensors
from ..tensor import Tensor
from ..tensor_bytes import bytes_of, tensor_over
from .module import Module

__all__ = ["load", "load_metadata", "save"]


@with_sentences
def save(
    path: str | os.PathLike[str], state: Module | Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name, or all those of a module, to a safetensors file; an existing file is replaced.

    Raises:
        FormatError: the file cannot be written.
        DTypeError: a value that is not a tensor.
    """
    if not isinstance(state, (Module, Mapping)):
        raise DTypeError(
            f"save: {type(state).__name__} instead of tensors. Write save(path, state), state a Module or a dict of "
            "tensors."
        )
    tensors = state.state_dict() if isinstance(state, Module) else dict(state)
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise DTypeError(f"save: {name!r} is a {type(tensor).__name__}. Give tensors; wrap data in Tensor(..).")
    if tensors:
        first, *others = tensors.values()
        first.realize(*others)
    safetensors.write(path, {n: (t.dtype, t.shape, bytes_of(t)) for n, t in tensors.items()}, metadata)


@with_sentences
def load(path: str | os.PathLike[str], device: str | None = None, *, mmap: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name. They are copies: later changes of the file have no effect.

    With `mmap=True`, tensors on a device with host memory use the file's own pages, which are read when they are used.
    The file must not be truncated while a tensor is alive: the system ends Python (SIGBUS) where it reads missing
    bytes. A program that overwrites the file changes the tensors.

    Raises:
        FormatError: the file does not exist, or is damaged; the message names the field.
    """
    file = safetensors.read(path, mmap=mmap)
    return {name: _tensor(file, entry, device, os.fspath(path)) for name, entry in file.entries.items()}


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the strings that were saved with the tensors.

    Raises:
        FormatError: as `load`.
    """
    return safetensors.read(path, has_values=False).metadata


def _tensor(
    file: safetensors.SafetensorsFile, entry: safetensors.SafetensorsEntry, device: str | None, where: str
) -> Tensor:
    import numpy as np

    values = file.values(entry.name)
    if entry.dtype.is_bool and (most := int(np.frombuffer(values, np.uint8).max(initial=0))) > 1:
        raise FormatError(f"{where}: tensor {entry.name!r}: a BOOL is {most}, not 0 or 1. The file is damaged.")
    return tensor_over(values, entry.dtype, entry.shape, device)

"""Weights in files: tensors to and from the safetensors format, and from the files of PyTorch, NumPy and GGUF."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from kernmill.ir import DType, DTypeError, FormatError, LazyModule

from ..arguments import with_sentences
from ..formats import kinds, nested, safetensors
from ..tensor import Tensor
from ..tensor_bytes import bytes_of, host_memory, tensor_over
from .module import Module

__all__ = ["load", "load_metadata", "save"]

# each is imported with the first file of its kind
_numpy_files: Any = LazyModule("kernmill.formats.numpy_files")
_shards: Any = LazyModule("kernmill.formats.shards")
_torch_files: Any = LazyModule("kernmill.formats.torch_files")
_quant: Any = LazyModule("kernmill.quant")


@with_sentences
def save(
    path: str | os.PathLike[str], state: Module | Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name, or all those of a module, to a safetensors file; an existing file is replaced.

    A state may be nested: `{"model": model, "optimizer": optimizer.state_dict(), "epoch": 3}` of modules, tensors,
    numbers, strings, None, dicts, lists and tuples. `load` returns the same, with a dict for each module.

    Raises:
        FormatError: the file cannot be written.
        DTypeError: a value that cannot be saved.
    """
    if not isinstance(state, (Module, Mapping)):
        raise DTypeError(
            f"save: {type(state).__name__} instead of tensors. Write save(path, state), state a Module or a dict of "
            "tensors."
        )
    tensors, structure = nested.flattened(_without_modules(state), Tensor)
    strings = {**(metadata or {}), **({} if structure is None else {nested.STRUCTURE: structure})}
    if tensors:
        first, *others = tensors.values()
        first.realize(*others)
    safetensors.write(path, {n: (t.dtype, t.shape, bytes_of(t)) for n, t in tensors.items()}, strings)


def _without_modules(value: Any, depth: int = 0) -> Any:
    if isinstance(value, Module):
        return value.state_dict()
    if type(value) is not dict or depth > nested.MOST_DEPTH:  # that error is raised where names are made
        return value
    return {key: _without_modules(part, depth + 1) for key, part in value.items()}


@with_sentences
def load(path: str | os.PathLike[str], device: str | None = None, *, mmap: bool = False) -> Any:
    """Return the tensors of a file by name; of a nested checkpoint, its dicts, lists and numbers.

    Files may be of safetensors, PyTorch (`.pt`, `.bin`), NumPy (`.npz`, `.npy`) or GGUF, or the JSON index of several.
    PyTorch's hold tensors in plain containers; no code of a file runs. GGUF gives `QuantizedTensor` for blocks.

    Tensors are copies: later changes of the file have no effect. With `mmap=True`, tensors on a device with host memory
    use the file's own pages, which are read when they are used. The file must not be truncated while a tensor is alive:
    the system ends Python (SIGBUS) where it reads missing bytes. A program that overwrites the file changes the
    tensors. NumPy's files are always copied.

    Raises:
        FormatError: the file does not exist, is damaged, or holds something else; the message names it.
    """
    kind = kinds.kind_of(path)
    if kind == "torch":
        return _of_torch(path, device, mmap)
    if kind == "npz":
        return {name: Tensor(array, device=device) for name, array in _numpy_files.read_npz(path).items()}
    if kind == "npy":
        return Tensor(_numpy_files.read_npy(path), device=device)
    if kind == "gguf":
        return _quant.load(path, device, mmap=mmap)
    if kind == "index":
        return _of_shards(path, device, mmap)
    file, where = safetensors.read(path, mmap=mmap, allocate=partial(host_memory, device=device)), os.fspath(path)
    found = {
        n: _tensor(file.values(n), e.dtype, e.shape, device, f"{where}: tensor {n!r}") for n, e in file.entries.items()
    }
    structure = file.metadata.get(nested.STRUCTURE)
    return found if structure is None else nested.rebuilt(structure, found, where)


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the strings that were saved with the tensors in a safetensors file.

    Raises:
        FormatError: as `load`.
    """
    strings = safetensors.read(path, has_values=False).metadata
    return {name: text for name, text in strings.items() if name != nested.STRUCTURE}


def _of_torch(path: str | os.PathLike[str], device: str | None, mmap: bool) -> Any:
    file = _torch_files.read(path, is_checked=not mmap)

    def make(values: memoryview, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        return _tensor(values, dtype, shape, device, file.where, borrow=mmap)

    return file.mapped_tree(make)


def _of_shards(path: str | os.PathLike[str], device: str | None, mmap: bool) -> dict[str, Any]:
    found = dict[str, Any]()
    for part, names in _shards.read_index(path).items():
        if kinds.kind_of(part) == "index":
            raise FormatError(f"{part}: is another index. Fetch all files again.")
        tensors = load(part, device, mmap=mmap)
        if not isinstance(tensors, dict) or set(tensors) != names:
            other = sorted(map(str, set(tensors) ^ names)) if isinstance(tensors, dict) else [type(tensors).__name__]
            raise FormatError(
                f"{os.fspath(path)}: {os.path.basename(part)} and the index differ in {', '.join(other[:4])}. "
                "Fetch all files again."
            )
        found.update(tensors)
    return found


def _tensor(
    values: memoryview, dtype: DType, shape: tuple[int, ...], device: str | None, what: str, *, borrow: bool = True
) -> Tensor:
    import numpy as np

    if dtype.is_bool and (most := int(np.frombuffer(values, np.uint8).max(initial=0))) > 1:
        raise FormatError(f"{what}: a BOOL is {most}, not 0 or 1. The file is damaged.")
    return tensor_over(values, dtype, shape, device, borrow=borrow)

"""LoRA adapters merged into the weights of a file: the result needs no adapter, and any program opens it.

Tests: tests/kernmill/llm/test_merging.py.
"""

from __future__ import annotations

from functools import partial

from kernmill import FormatError, Tensor, no_grad

from ..formats import gguf
from ..formats.gguf_made import MadeFile, MadeTensor, made_file
from ..formats.gguf_types import TensorType, tensor_type
from ..quant import BLOCKS, load_tensor
from ..tensor_bytes import bytes_of
from .adapters import Adapter, ControlVector, Given, adapters_of
from .model_file import config_in, naming

__all__ = ["merged"]


def merged(file: gguf.GGUFFile, given: Given, *, keeps_types: bool) -> gguf.GGUFFile:
    """A file with W + scale * B A for each matrix W that an adapter changes; they are computed when they are read.

    `keeps_types`: such a matrix has the type that it had, or F16 if kernmill does not write it; else F32, for a mix.

    Raises:
        FormatError: an adapter that cannot be read, or is for another model; a control vector.
    """
    with naming(file):
        config = config_in(file)
    adapters: list[Adapter] = []
    for one in adapters_of(given, config):
        if isinstance(one, ControlVector):
            raise FormatError(f"{one.path}: a control vector is added to states, and cannot be merged into weights.")
        adapters.append(one)
    changed = {name: [one for one in adapters if one.changes(name)] for name in file.entries}
    made: dict[str, MadeTensor] = {}
    for name, those in changed.items():
        entry = file.entries[name]
        for one in those:
            one.check_pair(name, entry.shape)
        if those:
            kind = _writable_type(entry.type) if keeps_types else tensor_type("F32")
            made[name] = MadeTensor(
                kind, entry.shape, partial(_merged_sum, file, name, those, kind), partial(file.sample, name),
                partial(file.release, name),
            )  # fmt: skip
    for one in adapters:
        one.check_all_used()
    result = made_file(file, made)
    if isinstance(file, MadeFile):
        result.made = {**file.made, **made}
    return result


def _writable_type(kind: TensorType) -> TensorType:
    """The type itself, or F16 if kernmill only reads it."""
    is_written = kind.dtype is not None or BLOCKS[kind.name].write is not None
    return kind if is_written else tensor_type("F16")


@no_grad()
def _merged_sum(file: gguf.GGUFFile, name: str, adapters: list[Adapter], kind: TensorType) -> memoryview:
    """The bytes of a matrix with the products of adapters."""
    weight = load_tensor(file, name, copied=True)
    values = weight.float() if isinstance(weight, Tensor) else weight.dequantize()
    for one in adapters:
        values = values + Tensor(one.difference(name, values.shape))
    if kind.dtype is not None:
        return bytes_of(values.cast(kind.dtype))
    return bytes_of(BLOCKS[kind.name].encode(values.contiguous().reshape(-1, kind.values)))

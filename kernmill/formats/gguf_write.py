"""Writing GGUF files, version 3, atomically. `gguf.py` describes the layout."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernmill.ir import FormatError

from ..arguments import with_sentences
from .disk import Output, replacing
from .gguf import DEFAULT_ALIGNMENT, MAGIC, MAX_ALIGNMENT, MAX_AXES, MAX_NAME_BYTES
from .gguf_types import TensorType, ValueType
from .quoting import quoted

__all__ = ["NewTensor", "Typed", "Values", "head", "write"]

VERSION = 3
Values = memoryview | Callable[[], Iterable[memoryview]]
_INTS = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
_INTS_OF_ARRAYS = (ValueType.INT32, *_INTS)  # llama.cpp requires it: tokenizer.ggml.token_type


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value, or the elements of an array, of a type that is not the one `write` would choose."""

    type: ValueType
    value: Any


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write. `values`: the bytes, or a function that is called in turn and yields them in pieces.

    Shapes: the slowest axis first.
    """

    type: TensorType
    shape: Sequence[int]
    values: Values


@with_sentences
def write(path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Mapping[str, NewTensor],
          *, alignment: int = DEFAULT_ALIGNMENT) -> None:  # fmt: skip
    """Write a file atomically: under a temporary name that then replaces the old file.

    A metadata value is a bool, an int (UINT32 if it fits, else INT32, UINT64, INT64), a float (FLOAT32), a str, a
    sequence of one of them (ints: INT32 if they fit), `Typed`, or the memoryview from `Metadata.raw`.

    Raises:
        FormatError: the folder does not exist or is not writable, the disk is full; a value or tensor that the format
            cannot store.
    """
    where = os.fspath(path)
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise FormatError(f"{where}: alignment {alignment} is not a power of two up to {MAX_ALIGNMENT}. Use 32.")
    header = bytearray(_head(metadata, len(tensors), alignment, where))
    offset = 0
    for name, tensor in tensors.items():
        header += _record(name, tensor, offset, where)
        offset += _padded(tensor.type.nbytes(tensor.shape), alignment)
    header += bytes(_padded(len(header), alignment) - len(header))
    with replacing(path) as file:
        file.write(header)
        for name, tensor in tensors.items():
            _write_values(file, tensor, alignment, f"{where}: tensor {name!r}")


def head(metadata: Mapping[str, Any], where: str) -> bytes:
    """Return the bytes of a file with metadata and without tensors, which `gguf.parse` reads; `where` is for errors.

    Raises:
        FormatError: a value that the format cannot store.
    """
    found = _head(metadata, 0, DEFAULT_ALIGNMENT, where)
    return found + bytes(_padded(len(found), DEFAULT_ALIGNMENT) - len(found))


def _head(metadata: Mapping[str, Any], tensors: int, alignment: int, where: str) -> bytes:
    """The beginning of a file, up to its metadata."""
    pairs = {key: value for key, value in metadata.items() if key != "general.alignment"}
    if alignment != DEFAULT_ALIGNMENT:
        pairs["general.alignment"] = Typed(ValueType.UINT32, alignment)
    header = bytearray(MAGIC + struct.pack("<Iqq", VERSION, tensors, len(pairs)))
    for key, value in pairs.items():
        header += _name(key, f"{where}: a metadata key") + _value(value, f"{where}: metadata {key!r}")
    return bytes(header)


def _padded(size_bytes: int, alignment: int) -> int:
    return -(-size_bytes // alignment) * alignment


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _name(name: str, what: str) -> bytes:
    """Encode the name of a metadata value or of a tensor."""
    if not isinstance(name, str):
        raise FormatError(f"{what} is {quoted(name)}, of type {type(name).__name__}. Give a string.")
    if not name:
        raise FormatError(f"{what} is empty. Name it.")
    try:
        return _text(name)
    except UnicodeEncodeError:
        raise FormatError(f"{what} is {quoted(name)}, which is not valid Unicode. Give a valid string.") from None


# --- metadata --------------------------------------------------------------------------------------------------------
def _value(value: Any, what: str) -> bytes | memoryview:
    """Type and value."""
    if isinstance(value, memoryview):
        return value
    content = value.value if isinstance(value, Typed) else value
    if isinstance(content, (str, bool, int, float)):
        kind = value.type if isinstance(value, Typed) else _type_of([content], _INTS, what)
        return struct.pack("<I", kind) + _packed(kind, [content], what)
    if not isinstance(content, Sequence) or isinstance(value, (bytes, bytearray)):  # as ints they would come back
        raise FormatError(
            f"{what}: GGUF cannot store a {type(content).__name__}. Give bools, numbers, strings, or a list of one "
            "kind."
        )
    items: list[Any] = list(content)
    kind = value.type if isinstance(value, Typed) else _type_of(items, _INTS_OF_ARRAYS, what)
    return struct.pack("<IIQ", ValueType.ARRAY, kind, len(items)) + _packed(kind, items, what)


def _type_of(values: list[Any], ints: Sequence[ValueType], what: str) -> ValueType:
    """Return the type that fits all values; for ints the first of the given ones."""
    kinds = {type(value) for value in values}
    if kinds <= {str}:
        return ValueType.STRING
    if kinds == {bool}:
        return ValueType.BOOL
    if kinds <= {int, float} and float in kinds:
        return ValueType.FLOAT32
    if kinds == {int}:
        for kind in ints:
            bits, signed = 8 * struct.calcsize(kind.code), kind.code.islower()
            low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
            if low <= min(values) and max(values) < high:
                return kind
        raise FormatError(f"{what}: an int beyond 64 bits. Give a float or a string.")
    shown = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise FormatError(f"{what}: GGUF has no array of {shown}. Give bools, numbers, or strings.")


def _packed(kind: ValueType, values: list[Any], what: str) -> bytes:
    try:
        if kind is ValueType.STRING:
            return b"".join(map(_text, values))
        return struct.pack(f"<{len(values)}{kind.code}", *values)
    except (struct.error, OverflowError, AttributeError, TypeError) as error:
        raise FormatError(f"{what}: a value is not a {kind.name}: {error}. Choose another type.") from None
    except UnicodeEncodeError:
        raise FormatError(f"{what}: a string is not valid Unicode. Encode it differently.") from None


# --- tensors ---------------------------------------------------------------------------------------------------------
def _record(name: str, tensor: NewTensor, offset: int, where: str) -> bytes:
    written, what = _name(name, f"{where}: a tensor's name"), f"{where}: tensor {name!r}"
    if not isinstance(tensor, NewTensor):
        raise FormatError(f"{what} is of type {type(tensor).__name__}. Give NewTensor(type, shape, values).")
    sizes = tuple(reversed(tensor.shape))
    row = sizes[0] if sizes else 1
    if len(name.encode()) > MAX_NAME_BYTES:
        raise FormatError(f"{what}: its name has more than {MAX_NAME_BYTES} bytes. Give it a shorter one.")
    if len(sizes) > MAX_AXES:
        raise FormatError(f"{what}: it has {len(sizes)} axes, GGUF has {MAX_AXES} at most. Reshape it.")
    if row % tensor.type.values:
        raise FormatError(
            f"{what}: rows of {row} values are not a multiple of the {tensor.type.name} block size "
            f"{tensor.type.values}. Choose another type.")  # fmt: skip
    packed = struct.pack(f"<I{len(sizes)}qIQ", len(sizes), *sizes, tensor.type.number, offset)
    return written + packed


def _write_values(file: Output, tensor: NewTensor, alignment: int, what: str) -> None:
    """The bytes of one tensor and its padding."""
    wanted, written = tensor.type.nbytes(tensor.shape), 0
    for piece in [tensor.values] if isinstance(tensor.values, memoryview) else tensor.values():
        file.write(piece)
        written += piece.nbytes
    if written != wanted:
        shape = tuple(tensor.shape)
        raise FormatError(f"{what}: {written} bytes for {tensor.type.name} of shape {shape}, which needs {wanted}. "
                          "Give all of its values.")  # fmt: skip
    file.write(bytes(_padded(written, alignment) - written))

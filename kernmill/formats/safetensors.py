"""The safetensors format: read with every check, write atomically. Knows bytes, not tensors.

    8 bytes   length N of the header, little-endian
    N bytes   JSON, which may end in spaces:
              {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [start, stop]}, "__metadata__": {"a": "b"}}
    the rest  the values of all tensors, little-endian, row-major, without gaps or overlaps

Source: github.com/huggingface/safetensors, README ("Format") and safetensors/src/tensor.rs (its checks).
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernmill.ir import DType, FormatError, dtypes

from .disk import mapped, opened, read_into, replacing
from .kinds import other_kind
from .quoting import quoted

__all__ = ["MAX_HEADER_BYTES", "SafetensorsEntry", "SafetensorsFile", "parse", "read", "write"]

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference reader
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8  # of the values, as the reference writer pads

DTYPES: dict[str, DType] = {
    "BOOL": dtypes.bool, "I8": dtypes.int8, "I16": dtypes.int16, "I32": dtypes.int32, "I64": dtypes.int64,
    "U8": dtypes.uint8, "U16": dtypes.uint16, "U32": dtypes.uint32, "U64": dtypes.uint64,
    "F16": dtypes.float16, "BF16": dtypes.bfloat16, "F32": dtypes.float32, "F64": dtypes.float64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """One tensor of a file. Units: `start` and `stop` are bytes from the beginning of the file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(slots=True)
class SafetensorsFile:
    """A file that was checked: its entries by name, its metadata, and its bytes, mapped or in memory by tensor."""

    entries: dict[str, SafetensorsEntry]
    metadata: dict[str, str]
    data: memoryview = field(repr=False)
    copies: dict[str, memoryview] | None = field(default=None, repr=False)

    def values(self, name: str) -> memoryview:
        """The bytes of one tensor, without a further copy."""
        if self.copies is not None:
            return self.copies[name]
        entry = self.entries[name]
        return self.data[entry.start : entry.stop]


def _new_memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


def read(
    path: str | os.PathLike[str],
    *,
    mmap: bool = False,
    has_values: bool = True,
    allocate: Callable[[int], memoryview] = _new_memory,
) -> SafetensorsFile:
    """Open a file and check all of its header. The tensors are read into memory, each separately.

    `mmap` maps the file instead: its bytes are read when they are used. Then the file must not be truncated while a
    tensor is alive: the system ends a program (SIGBUS) that reads missing bytes. Overwriting the file changes the
    tensors. One that `write` replaces remains intact for readers that have it open. Without `has_values` only the
    header is read. `allocate` gives memory for the bytes of a tensor.

    Raises:
        FormatError: the file does not exist, cannot be read, or is invalid.
    """
    where = os.fspath(path)
    if mmap:
        return parse(mapped(path, "safetensors"), where)
    with opened(path, "safetensors") as (file, size):
        head = file.read(_LENGTH.size + 1)
        if head[_LENGTH.size :] != b"{":
            return parse(mapped(path, "safetensors"), where)  # it reports the kind of file
        (length,) = _LENGTH.unpack_from(head)
        if length <= min(size, MAX_HEADER_BYTES):
            head += file.read(length - 1)
        found = parse(memoryview(head), where, size)
        if has_values:
            found.copies = {
                e.name: read_into(allocate(e.stop - e.start), file, e.start) for e in found.entries.values()
            }
    return found


def parse(data: memoryview, where: str = "safetensors", size: int | None = None) -> SafetensorsFile:
    """Check the bytes of a whole file; with `size`, the first bytes of a file of that size, which contain its header.

    Raises:
        FormatError: with the field and its offset.
    """
    if bytes(data[8:9]) != b"{" and (kind := other_kind(data)):
        raise FormatError(f"{where}: {kind}")
    size = len(data) if size is None else size
    if size < _LENGTH.size:
        raise _fault(where, 0, f"{size} bytes are too few for the length of the header, which takes 8")
    (length,) = _LENGTH.unpack_from(data)
    if length > MAX_HEADER_BYTES:
        raise _fault(where, 0, f"the header length {length} is over {MAX_HEADER_BYTES}")
    begin = _LENGTH.size + length
    if begin > size:
        raise _fault(where, 0, f"the header length {length} does not fit a file of {size} bytes")
    header = _header(bytes(data[_LENGTH.size : begin]), where)
    metadata = _metadata(header.pop("__metadata__", {}), where)
    entries = {name: _entry(name, row, begin, where) for name, row in header.items()}
    _covered(entries, begin, size, where)
    return SafetensorsFile(entries, metadata, data)


def _fault(where: str, offset: int, text: str) -> FormatError:
    return FormatError(
        f"{where}: at byte {offset}: {text}. The file is damaged or not a safetensors file; fetch it again."
    )


def _wrong(where: str, name: str, text: str) -> FormatError:
    return FormatError(f"{where}: tensor {quoted(name)}: {text}. The file is damaged; fetch it again.")


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKeyError(key)
        found[key] = value
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not valid JSON")


def _header(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON of the header: an object without a key twice."""
    if not raw.startswith(b"{"):
        raise _fault(where, 8, "the header does not begin with '{'")
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _fault(where, 8 + error.start, "the header is not UTF-8") from None
    except _DuplicateKeyError as error:
        raise _fault(where, 8, f"the key {quoted(str(error))} occurs twice in the header") from None
    except json.JSONDecodeError as error:
        raise _fault(where, 8 + error.pos, f"the header is not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise _fault(where, 8, f"the header is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise _fault(where, 8, "the header is not a JSON object")
    return found


def _metadata(found: Any, where: str) -> dict[str, str]:
    if found is None:  # as the reference reader accepts it
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _fault(where, 8, "__metadata__ is not an object of strings")
    return found


def _entry(name: str, row: Any, begin: int, where: str) -> SafetensorsEntry:
    """One row of the header."""
    if not isinstance(row, dict) or set(row) != {"dtype", "shape", "data_offsets"}:
        shown = quoted(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise _wrong(where, name, f"its entry has {shown}, not dtype, shape and data_offsets")
    dtype = DTYPES.get(row["dtype"]) if isinstance(row["dtype"], str) else None
    if dtype is None:
        known = ", ".join(DTYPES)
        raise FormatError(
            f"{where}: tensor {quoted(name)}: dtype {quoted(row['dtype'])} is not supported. Supported: {known}."
        )
    shape, offsets = row["shape"], row["data_offsets"]
    if not _are_sizes(shape):
        raise _wrong(where, name, f"shape {quoted(shape)} is not a list of integers >= 0")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _wrong(where, name, f"data_offsets {quoted(offsets)} are not [start, stop] with 0 <= start <= stop")
    wanted = math.prod(shape) * dtype.size_bytes
    if offsets[1] - offsets[0] != wanted:
        raise _wrong(where, name, f"data_offsets {offsets} span {offsets[1] - offsets[0]} bytes, "
                                  f"{row['dtype']} of shape {quoted(shape)} needs {wanted}")  # fmt: skip
    return SafetensorsEntry(name, dtype, tuple(shape), begin + offsets[0], begin + offsets[1])


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)


def _covered(entries: Mapping[str, SafetensorsEntry], begin: int, end: int, where: str) -> None:
    """Check that the tensors fill the rest of the file: no gap, no overlap, nothing beyond."""
    offset = begin
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.stop)):
        if entry.stop > end:
            raise _wrong(where, entry.name, f"it ends at byte {entry.stop} of a file of {end}")
        if entry.start != offset:
            word = "overlaps the one before" if entry.start < offset else "leaves a gap to the one before"
            raise _wrong(where, entry.name, f"it starts at byte {entry.start} and {word}, which ends at {offset}")
        offset = entry.stop
    if offset != end:
        raise _fault(where, offset, f"{end - offset} bytes after the last tensor belong to no tensor")


# --- writing ---------------------------------------------------------------------------------------------------------
def write(path: str | os.PathLike[str], tensors: Mapping[str, tuple[DType, Sequence[int], memoryview]],
          metadata: Mapping[str, str] | None = None) -> None:  # fmt: skip
    """Write a file atomically: under a temporary name that then replaces the old file.

    Raises:
        FormatError: the folder does not exist or is not writable; a name that the format reserves.
    """
    where = os.fspath(path)
    header, parts = _header_and_parts(tensors, metadata or {}, where)
    with replacing(where) as file:
        file.write(_LENGTH.pack(len(header)))
        file.write(header)
        for part in parts:
            file.write(part)


def _header_and_parts(
    tensors: Mapping[str, tuple[DType, Sequence[int], memoryview]], metadata: Mapping[str, str], where: str
) -> tuple[bytes, list[memoryview]]:
    """The header and the values in their order: wide dtypes first, so that each value is aligned."""
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items()):
        raise FormatError(f"{where}: metadata must be a dict of strings to strings. Convert the values with str().")
    rows: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    parts: list[memoryview] = []
    for name in sorted(tensors, key=lambda n: (-tensors[n][0].size_bytes, n)):
        dtype, shape, values = tensors[name]
        if name == "__metadata__":
            raise FormatError(
                f"{where}: a tensor cannot be named '__metadata__': the format reserves this name. Rename it."
            )
        if values.nbytes != math.prod(shape) * dtype.size_bytes:
            shown = f"{dtype.name} of shape {tuple(shape)}"
            raise FormatError(f"{where}: tensor {quoted(name)}: {values.nbytes} bytes for {shown}. "
                              "Give all of its values.")  # fmt: skip
        stop = offset + values.nbytes
        rows[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, stop]}
        parts.append(values)
        offset = stop
    header = json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()
    return header + b" " * (-len(header) % _ALIGNMENT), parts

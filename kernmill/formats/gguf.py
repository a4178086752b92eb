"""The GGUF format, versions 2 and 3: read with every check. Knows bytes, not tensors. `gguf_write.py` writes it.

    4 bytes   "GGUF"
    u32       version
    i64, i64  number of tensors, number of metadata values
    values    each: key, u32 type, value; an array is u32 type, u64 count, elements
    tensors   each: name, u32 number of axes, i64 sizes with the fastest first, u32 type, u64 offset in the data
    zeros     up to a multiple of the alignment, which the value `general.alignment` changes from 32
    data      the bytes of the tensors in the same order, each padded to the alignment

All numbers are little-endian; a string is its length as u64 and its bytes. Files are rejected if a later step would
read outside the file, or use more memory than the file has bytes. Time and memory are proportional to the bytes of the
header, whatever counts and lengths it claims. Values are decoded at their first use.

Source: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import math
import os
import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kernmill.ir import FormatError

from ..arguments import with_sentences
from .disk import mapped, release
from .gguf_types import RETIRED, TYPES, TensorType, ValueType
from .quoting import quoted

__all__ = [
    "DEFAULT_ALIGNMENT",
    "MAX_ALIGNMENT",
    "MAX_AXES",
    "MAX_NAME_BYTES",
    "GGUFEntry",
    "GGUFFile",
    "Metadata",
    "parse",
    "read",
]

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 21  # a huge page; more would let a small file request a large allocation
MAX_AXES = 4
MAX_NAME_BYTES = 63
MAX_RECORDS = 1 << 16  # metadata values, and tensors, of one file: each takes more memory than bytes in the file
MAX_LENGTH = 1 << 30  # bytes of a string, elements of an array: as the reference reader
_LEAST_VALUE = 8 + 1 + 4 + 1  # bytes of a metadata value: key of one byte, type, one byte
_LEAST_TENSOR = 8 + 4 + 4 + 8  # bytes of a tensor's record: empty name, no axes, type, offset
_U32, _U64, _I64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")
_OTHERS = {  # first bytes of files that are mistaken for GGUF
    b"PK\3\4": "That is a zip archive, such as PyTorch's. Convert the model with llama.cpp's convert_hf_to_gguf.py.",
    b"version https://git-lfs": "That is Git LFS's note of where the file is. Fetch it with: git lfs pull.",
    b"<": "That is a web page. Fetch the file that it links to.",
    **dict.fromkeys((b"lmgg", b"fmgg", b"tjgg", b"algg"), "That is older than GGUF. Fetch a newer file of the model."),
}
_SAFETENSORS = re.compile(rb".{8}\{", re.DOTALL)
_SPLIT = re.compile(r"-00001-of-(\d{5})\.gguf")
_OF_PART = re.compile(r"split\.|general\.alignment$")  # metadata that may differ between the parts of a file
_WINDOW_BYTES = 1 << 16  # searched at a time for the offsets of strings
_FEW = 1 << 10  # texts that are gone over one by one where no more are found together

T = TypeVar("T", int, float, bool, str, tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class GGUFEntry:
    """One tensor of a file.

    Shapes: the slowest axis first, the opposite of the order in the file. Units: `start` and `stop` are bytes from the
    beginning of part `part` of a split file.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    start: int
    stop: int
    part: int = 0


@dataclass(slots=True)
class GGUFFile:
    """A checked file, or all parts of a split one: its tensors by name, its metadata, and its bytes."""

    entries: dict[str, GGUFEntry]
    metadata: Metadata
    version: int
    alignment: int
    where: str
    paths: tuple[str, ...]
    parts: tuple[memoryview, ...] = field(repr=False)

    def values(self, name: str) -> memoryview:
        """The bytes of one tensor, without a copy."""
        entry = self.entries[name]
        return self.parts[entry.part][entry.start : entry.stop]

    def sample(self, name: str, size_bytes: int) -> memoryview:
        """The first bytes of a tensor, or of its sources: they tell files apart."""
        return self.values(name)[:size_bytes]

    def release(self, name: str) -> None:
        """The tensor was copied: its pages need no memory until somebody reads them again."""
        entry = self.entries[name]
        release(self.parts[entry.part], entry.start, entry.stop)


@dataclass(frozen=True, slots=True)
class _Spot:
    """The position of a metadata value: its type is at `begin`, its numbers or strings from `start` to `stop`."""

    type: ValueType  # of the value, or of the elements of an array
    count: int | None  # of an array
    begin: int
    start: int
    stop: int


class Metadata(Mapping[str, Any]):
    """The metadata of a file: bools, ints, floats, strings, and tuples of them. Numbers of one or two bytes are in an
    `array.array`; a tuple of them would take up to 40 times as much memory. A value is decoded when it is accessed.

    Raises:
        FormatError: on access: a string that is not UTF-8, a bool that is neither 0 nor 1.
    """

    def __init__(self, data: memoryview, where: str, spots: dict[str, _Spot]) -> None:
        self._data, self._where, self._spots = data, where, spots
        self._decoded: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._spots)

    def __len__(self) -> int:
        return len(self._spots)

    def __contains__(self, key: object) -> bool:
        return key in self._spots

    def __getitem__(self, key: str) -> Any:
        if key in self._decoded:
            return self._decoded[key]
        spot = self._spots[key]
        value = self._decode(key, spot)
        if spot.count is None:  # lists are large, and read once: a vocabulary and its merges are 50 MB of strings
            self._decoded[key] = value
        return value

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} values: {', '.join(list(self)[:8])}{', ..' if len(self) > 8 else ''}>"

    def type_of(self, key: str) -> tuple[ValueType, ValueType | None]:
        """The type of a value and, of an array, that of its elements."""
        spot = self._spots[key]
        return (spot.type, None) if spot.count is None else (ValueType.ARRAY, spot.type)

    def raw(self, key: str) -> memoryview:
        """Return type and value as bytes of the file."""
        spot = self._spots[key]
        return self._data[spot.begin : spot.stop]

    def read(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a value that must be of a kind: int, float (an int is one), bool, str or tuple.

        Raises:
            FormatError: it does not exist and there is no default, or it is of another kind.
        """
        if key not in self._spots:
            if default is not None:
                return default
            raise FormatError(f"{self._where}: metadata {quoted(key)} is missing. The file does not describe the "
                              "model; convert it again.")  # fmt: skip
        value: Any = self[key]
        if kind is float and type(value) is int:
            value = float(value)
        if kind is tuple and isinstance(value, array):
            value = tuple(value)
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise FormatError(f"{self._where}: metadata {quoted(key)} is the {type(value).__name__} {quoted(value)}, "
                              f"where {_name(kind)} belongs. Convert the file again.")  # fmt: skip
        return value

    def joined(self, key: str) -> bytes | None:
        """Return the strings of a list in one piece, a zero before each; None if it is not such a list, or one of
        them contains a zero. UTF-8 is not checked."""
        spot = self._spots.get(key)
        if spot is None or spot.count is None or spot.type is not ValueType.STRING:
            return None
        raw, parts = self._data[spot.start : spot.stop], list[bytes]()
        for offsets, end in _string_offsets(raw, 0, spot.count):
            together = _together(raw[offsets[0] : end], offsets)
            if together is None:
                ends = [*map(int, offsets), end][1:]
                together = b"".join(
                    b"\0" + bytes(raw[offset + 8 : stop]) for offset, stop in zip(offsets, ends, strict=True)
                )
                if together.count(0) != len(offsets):
                    return None
            parts.append(together)
        return b"".join(parts)

    def _decode(self, key: str, spot: _Spot) -> Any:
        if spot.type is ValueType.STRING:
            texts = self._texts(key, spot)
            return texts[0] if spot.count is None else tuple(texts)
        if spot.type is ValueType.BOOL and set(self._data[spot.start : spot.stop]) - {0, 1}:
            raise _fault(self._where, spot.start, f"metadata {quoted(key)}", "a bool is neither 0 nor 1")
        if spot.count is not None and spot.type.code in "BbHh":
            return array(spot.type.code, bytes(self._data[spot.start : spot.stop]))
        count = 1 if spot.count is None else spot.count
        values = struct.unpack_from(f"<{count}{spot.type.code}", self._data, spot.start)
        return values[0] if spot.count is None else values

    def _texts(self, key: str, spot: _Spot) -> list[str]:
        raw, texts = self._data[spot.start : spot.stop], list[str]()
        for offsets, end in _string_offsets(raw, 0, 1 if spot.count is None else spot.count):
            together = None if spot.count is None else _split(raw[offsets[0] : end], offsets)
            if together is not None:
                texts += together
                continue
            for offset in map(int, offsets):
                begin = offset + 8
                try:
                    texts.append(str(raw[begin : begin + _U64.unpack_from(raw, offset)[0]], "utf-8"))
                except UnicodeDecodeError:
                    element = "" if spot.count is None else f"[{len(texts)}]"
                    raise _fault(
                        self._where, spot.start + begin, f"metadata {quoted(key)}{element}", "is not UTF-8"
                    ) from None
        return texts


# --- texts: a vocabulary has hundred thousands, and one by one they take longer than all else ------------------------
def _string_offsets(data: memoryview, at: int, count: int) -> Iterator[tuple[Sequence[int], int]]:
    """Yield the offsets of strings and their lengths, some thousand at a time, and the end of the last one. It stops
    before a string that extends beyond the data."""
    few = _FEW
    while count:
        offsets, end = _short_texts(data, at) if count > few else ([], at)
        if len(offsets) > count:
            offsets, end = offsets[:count], int(offsets[count])
        if len(offsets):
            yield offsets, end
            count, at = count - len(offsets), end
        if len(offsets) >= _FEW:
            few = _FEW
            continue
        offsets, end = _one_by_one(data, at, wanted := min(count, few))
        if offsets:
            yield offsets, end
        if len(offsets) < wanted:
            return
        count, at = count - len(offsets), end
        few *= 2  # so that looking in vain costs little, whatever the data are


def _one_by_one(data: memoryview, at: int, count: int) -> tuple[list[int], int]:
    offsets, unpack, last = list[int](), _U64.unpack_from, len(data) - 8
    for _ in range(count):
        if at > last or (end := at + 8 + unpack(data, at)[0]) > len(data):
            break
        offsets.append(at)
        at = end
    return offsets, at


def _short_texts(data: memoryview, at: int) -> tuple[Any, int]:
    """Like `_one_by_one`, for the next strings in a window, while they have less than 256 bytes.

    Their lengths are one byte and seven zeros. All positions before seven zeros are found, and are valid as long as
    each is the end of the string before it.
    """
    import numpy as np  # slow, and most callers import it anyway

    window = np.frombuffer(data[at : at + _WINDOW_BYTES], np.uint8)
    pairs = window[1:-1] | window[2:]  # of the bytes one and two further on
    fours = pairs[:-2] | pairs[2:]
    offsets = np.flatnonzero((fours[:-3] | fours[3:]) == 0)
    ends = offsets + 8 + window[offsets]
    is_next = np.concatenate(([0], ends))[:-1] == offsets
    count = len(offsets) if is_next.all() else int(is_next.argmin())
    if count and at + ends[count - 1] > len(data):
        count -= 1
    return offsets[:count] + at, at + int(ends[count - 1]) if count else at


def _split(raw: memoryview, offsets: Sequence[int]) -> list[str] | None:
    """Return strings, from the first one's length on; None if they contain zeros, have 256 bytes or more, or are not
    UTF-8."""
    together = _together(raw, offsets)
    try:
        return None if together is None else str(together, "utf-8").split("\0")[1:]
    except UnicodeDecodeError:
        return None


def _together(raw: memoryview, offsets: Sequence[int]) -> bytes | None:
    """Return strings, from the first one's length on, with a zero instead of each length; None if they contain zeros,
    or have 256 bytes or more.

    A length is otherwise one byte and seven zeros: if there are no other zeros, no string contains one.
    """
    import numpy as np

    marks = np.asarray(offsets) - offsets[0]
    if np.diff(marks, append=len(raw)).max() >= 8 + 256:
        return None
    letters: Any = np.frombuffer(raw, np.uint8).copy()
    letters[marks] = 0
    is_kept = letters != 0
    if np.count_nonzero(is_kept) + 8 * len(offsets) != len(letters):
        return None
    is_kept[marks] = True
    kept: bytes = letters[is_kept].tobytes()
    return kept


def _name(kind: type) -> str:
    return f"{'an' if kind is int else 'a'} {kind.__name__}"


def _fault(where: str, offset: int, what: str, text: str) -> FormatError:
    return FormatError(
        f"{where}: at byte {offset}: {what}: {text}. The file is damaged or not a GGUF file; fetch it again."
    )


# --- reading ---------------------------------------------------------------------------------------------------------
@with_sentences
def read(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a file through the page cache and check all of its header; for a split file, the first part opens all.

    The files must not be truncated while they are in use; one that `gguf_write.write` replaces remains intact for
    readers that have it open.

    Raises:
        FormatError: a file does not exist, cannot be read, or is invalid.
    """
    where = os.fspath(path)
    first = parse(mapped(where, "GGUF"), where)
    count = first.metadata.read("split.count", int, 1)
    if count < 0:
        raise FormatError(f"{where}: metadata 'split.count' is {count}, which is not a number of files. "
                          "Convert the file again.")  # fmt: skip
    return first if count <= 1 else _all_parts(first, count)


def parse(data: memoryview, where: str = "GGUF") -> GGUFFile:
    """Check the bytes of one file; a part of a split file is read separately.

    Raises:
        FormatError: with the field and its offset.
    """
    cursor = _Cursor(data, where)
    version = _version(cursor)
    tensors = cursor.count("number of tensors", _LEAST_TENSOR)
    values = cursor.count("number of metadata values", _LEAST_VALUE)
    spots: dict[str, _Spot] = {}
    for number in range(values):
        _add_value(cursor, number, spots)
    metadata = Metadata(data, where, spots)
    alignment = _alignment(metadata, spots, where)
    entries: dict[str, GGUFEntry] = {}
    offset = 0  # in the data: the sum of the padded sizes so far
    for number in range(tensors):
        entry = _tensor(cursor, number, offset)
        if entry.name in entries:
            raise cursor.fault("name of a tensor", f"{quoted(entry.name)} occurs twice")
        entries[entry.name] = entry
        offset = _padded(entry.stop, alignment)
    begin = _padded(cursor.at, alignment)
    for entry in entries.values():
        if entry.start < entry.stop and begin + entry.stop > len(data):
            raise _fault(where, begin + entry.start, f"tensor {quoted(entry.name)}",
                         f"it ends at byte {begin + entry.stop} of a file of {len(data)}")  # fmt: skip
    placed = {n: replace(e, start=begin + e.start, stop=begin + e.stop) for n, e in entries.items()}
    return GGUFFile(placed, metadata, version, alignment, where, (where,), (data,))


def _padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


class _Cursor:
    """A position in the bytes of a file that advances over what it reads, and never past the end."""

    def __init__(self, data: memoryview, where: str) -> None:
        self.data, self.where, self.at, self.last = data, where, 0, 0

    def fault(self, what: str, text: str) -> FormatError:
        """Return an error about the last field."""
        return _fault(self.where, self.last, what, text)

    def skip(self, size_bytes: int, what: str) -> int:
        """Go over some bytes; where they begin."""
        self.last = self.at
        if size_bytes > len(self.data) - self.at:
            raise self.fault(what, f"it takes {size_bytes} bytes, the file has {len(self.data) - self.at} more")
        self.at += size_bytes
        return self.last

    def number(self, form: struct.Struct, what: str) -> int:
        """A number."""
        found: int = form.unpack_from(self.data, self.skip(form.size, what))[0]
        return found

    def count(self, what: str, least_bytes: int) -> int:
        """Return the number of records, each of at least `least_bytes`."""
        found = self.number(_I64, what)
        if not 0 <= found <= MAX_RECORDS:
            raise self.fault(what, f"{found} is not in 0 to {MAX_RECORDS}")
        if found * least_bytes > len(self.data) - self.at:
            raise self.fault(what, f"{found} do not fit the {len(self.data) - self.at} bytes that follow")
        return found

    def length(self, what: str, least_bytes: int = 1) -> int:
        """Return a length: of bytes, or elements of at least `least_bytes`."""
        found = self.number(_U64, f"length of {what}")
        if found > MAX_LENGTH or found * least_bytes > len(self.data) - self.at:
            left = len(self.data) - self.at
            raise self.fault(f"length of {what}", f"{found} does not fit the {left} bytes that follow")
        return found

    def text(self, what: str) -> str:
        """Return a string in UTF-8."""
        length = self.length(what)
        start = self.skip(length, what)
        try:
            return str(self.data[start : self.at], "utf-8")
        except UnicodeDecodeError:
            raise self.fault(what, "it is not UTF-8") from None

    def texts(self, count: int, what: str) -> None:
        """Go over texts."""
        found = 0
        for offsets, end in _string_offsets(self.data, self.at, count):
            found, self.at = found + len(offsets), end
        if found < count:
            self.last = self.at
            raise self.fault(f"{what}[{found}]", "the string extends beyond the end of the file")

    def value_type(self, what: str) -> ValueType:
        """The type of a value."""
        found = self.number(_U32, f"type of {what}")
        try:
            return ValueType(found)
        except ValueError:
            raise self.fault(f"type of {what}", f"{found} is not in 0 to {max(ValueType)}") from None


def _version(cursor: _Cursor) -> int:
    where = cursor.where
    if bytes(cursor.data[:4]) != MAGIC:
        raise _no_gguf(where, bytes(cursor.data[:32]))
    cursor.skip(4, "first bytes")
    version = cursor.number(_U32, "version")
    if version & 0xFFFF == 0 and version:
        raise FormatError(f"{where}: at byte 4: version: the file is big-endian. kernmill reads little-endian GGUF; "
                          "convert it with `gguf-convert-endian FILE little` of the package gguf.")  # fmt: skip
    if version not in (2, 3):
        raise FormatError(f"{where}: at byte 4: version: {version} is not supported: must be 2 or 3. Convert the "
                          "model again, or update kernmill.")  # fmt: skip
    return version


def _no_gguf(where: str, head: bytes) -> FormatError:
    """Another file, by its first bytes."""
    text = f"they are {head[:4]!r}, not {MAGIC!r}"
    known = [meaning for start, meaning in _OTHERS.items() if head.startswith(start)]
    if _SAFETENSORS.match(head):
        known.append("That is a safetensors file. Give the folder that it is in, with its config.json.")
    if known:
        return FormatError(f"{where}: at byte 0: first bytes: {text}. {known[0]}")
    return _fault(where, 0, "first bytes", text)


def _add_value(cursor: _Cursor, number: int, spots: dict[str, _Spot]) -> None:
    """One metadata value: its key is new, its bytes are there."""
    begin = cursor.at
    key = cursor.text(f"key of metadata value {number}")
    cursor.last = begin
    if not key or key in spots:
        raise cursor.fault(f"key of metadata value {number}", f"{quoted(key)} occurs twice" if key else "it is empty")
    what = f"metadata {quoted(key)}"
    begin = cursor.at
    kind, count = cursor.value_type(what), None
    if kind is ValueType.ARRAY:
        kind = cursor.value_type(f"the elements of {what}")
        if kind is ValueType.ARRAY:
            raise cursor.fault(f"type of the elements of {what}", "arrays of arrays are not valid GGUF")
        count = cursor.length(what, 8 if kind is ValueType.STRING else struct.calcsize(kind.code))
    start = cursor.at
    if kind is ValueType.STRING:
        cursor.texts(1 if count is None else count, what)
    else:
        cursor.skip((1 if count is None else count) * struct.calcsize(kind.code), what)
    spots[key] = _Spot(kind, count, begin, start, cursor.at)


def _alignment(metadata: Metadata, spots: dict[str, _Spot], where: str) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    if metadata.type_of(key) != (ValueType.UINT32, None):
        raise _fault(where, spots[key].begin, f"metadata {quoted(key)}", "it is not of type UINT32")
    found: int = metadata[key]
    if not 0 < found <= MAX_ALIGNMENT or found & (found - 1):
        raise _fault(where, spots[key].start, f"metadata {quoted(key)}",
                     f"{found} is not a power of two up to {MAX_ALIGNMENT}")  # fmt: skip
    return found


def _tensor(cursor: _Cursor, number: int, expected: int) -> GGUFEntry:
    """One record of the tensor table; `start` and `stop` count from the beginning of the data."""
    name = cursor.text(f"name of tensor {number}")
    if cursor.at - cursor.last > MAX_NAME_BYTES:
        raise cursor.fault(
            f"name of tensor {number}", f"it has {cursor.at - cursor.last} bytes, {MAX_NAME_BYTES} at most"
        )
    what = f"tensor {quoted(name)}"
    axes = cursor.number(_U32, f"number of axes of {what}")
    if axes > MAX_AXES:
        raise cursor.fault(f"number of axes of {what}", f"it is {axes}, {MAX_AXES} at most")
    sizes = [cursor.number(_I64, f"axis {axis} of {what}") for axis in range(axes)]
    if any(size < 0 for size in sizes):
        raise cursor.fault(f"shape of {what}", f"{sizes} has a negative size")
    if math.prod(max(1, size) for size in sizes) >= 1 << 63:
        raise cursor.fault(f"shape of {what}", f"{sizes} has more than 2**63 - 1 values")
    kind = _known_type(cursor, cursor.number(_U32, f"type of {what}"), what)
    if (sizes[0] if sizes else 1) % kind.values:
        row = sizes[0] if sizes else 1
        raise cursor.fault(f"shape of {what}",
            f"rows of {row} values are not a multiple of the {kind.name} block size {kind.values}")  # fmt: skip
    offset = cursor.number(_U64, f"offset of {what}")
    if offset != expected:
        word = "overlaps the tensor before" if offset < expected else "leaves a gap to the tensor before"
        raise cursor.fault(f"offset of {what}", f"{offset} {word}; it must be {expected}")
    size_bytes = kind.nbytes(sizes)
    if size_bytes > len(cursor.data):
        raise cursor.fault(what, f"it takes {size_bytes} bytes, the file has {len(cursor.data)}")
    return GGUFEntry(name, kind, tuple(reversed(sizes)), offset, offset + size_bytes)


def _known_type(cursor: _Cursor, number: int, what: str) -> TensorType:
    found = TYPES.get(number)
    if found is None:
        why = "is retired: the file is too old" if number in RETIRED else "is unknown"
        raise FormatError(f"{cursor.where}: at byte {cursor.last}: type of {what}: {number} {why}. Convert the model "
                          "again, or update kernmill.")  # fmt: skip
    return found


# --- split files -----------------------------------------------------------------------------------------------------
def _all_parts(first: GGUFFile, count: int) -> GGUFFile:
    """Merge all parts of a split file into one; the first has the metadata."""
    where, number = first.where, first.metadata.read("split.no", int)
    name = _SPLIT.search(where)
    if number != 0 or name is None or name.end() != len(where) or int(name[1]) != count:
        raise FormatError(
            f"{where}: it is part {number + 1} of {count} of a split GGUF file. Open the first part, "
            f"whose name ends in -00001-of-{count:05}.gguf; the others must be in the same folder."
        )
    entries, paths, parts = dict(first.entries), list(first.paths), list(first.parts)
    for part in range(1, count):
        path = f"{where[: name.start()]}-{part + 1:05}-of-{count:05}.gguf"
        if not os.path.exists(path):
            raise FormatError(f"{path}: cannot be read: there is no such file, and it is part {part + 1} of {count} of "
                              "a split GGUF file. Fetch it into the folder of the first.")  # fmt: skip
        other = parse(mapped(path, "GGUF"), path)
        found = other.metadata.read("split.no", int), other.metadata.read("split.count", int)
        if found != (part, count):
            raise FormatError(f"{path}: it is part {found[0] + 1} of {found[1]}, not {part + 1} of {count}. "
                              "Fetch the parts of one model.")  # fmt: skip
        for key in other.metadata:
            if not _OF_PART.match(key) and key in first.metadata and other.metadata.raw(key) != first.metadata.raw(key):
                raise FormatError(f"{path}: metadata {quoted(key)} differs from that of the first part. "
                                  "Fetch the parts of one model.")  # fmt: skip
        for entry in other.entries.values():
            if entry.name in entries:
                raise FormatError(f"{path}: tensor {quoted(entry.name)} is in an earlier part too. "
                                  "Fetch the parts of one model.")  # fmt: skip
            entries[entry.name] = replace(entry, part=part)
        paths += other.paths
        parts += other.parts
    wanted = first.metadata.read("split.tensors.count", int)
    if wanted != len(entries):
        raise FormatError(f"{where}: its parts have {len(entries)} tensors, metadata 'split.tensors.count' says "
                          f"{wanted}. Fetch the parts of one model.")  # fmt: skip
    return replace(first, entries=entries, paths=tuple(paths), parts=tuple(parts))

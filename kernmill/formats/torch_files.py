"""PyTorch's files (.pt, .pth, .bin): a pickle of containers, and the bytes of storages. No code of a file runs.

Since PyTorch 1.6 a zip archive without compression: `NAME/data.pkl`, `NAME/data/KEY` for each storage and
`NAME/byteorder`. Before, several pickles: a number, the version, sizes of the system, the object, and the keys of the
storages. After them each storage follows: the number of its elements as int64, and the elements.

Source: github.com/pytorch/pytorch, torch/serialization.py.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernmill.ir import DType, FormatError

from .disk import mapped
from .pickles import Storage, StoredTensor, TorchDType, decode, mapped_tree
from .quoting import quoted

__all__ = ["TorchFile", "read"]

_MAGIC = 0x1950A86A20F9469CFC6C
_LOCAL = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_MOST_OVERLAP = 8  # bytes of all tensors together, for each byte of the file


@dataclass
class TorchFile:
    """The decoded object of a file, and where the bytes of its storages are."""

    tree: Any
    where: str
    data: memoryview = field(repr=False)
    extents: dict[str, tuple[int, int, int]]  # of a storage: start, stop, CRC-32 or 0
    is_checked: bool
    known: dict[str, memoryview] = field(default_factory=dict[str, memoryview], repr=False)
    total: int = 0

    def mapped_tree(self, make: Callable[[memoryview, DType, tuple[int, ...]], Any]) -> Any:
        """The object with `make` of bytes, dtype and shape of each tensor; equal views of a storage are made once.

        Raises:
            FormatError: a tensor does not fit its storage, or has a dtype that is not supported.
        """
        done = dict[StoredTensor, Any]()

        def one(tensor: StoredTensor, name: str) -> Any:
            if tensor not in done:
                values = self._elements(tensor, name)
                assert tensor.kind.dtype is not None
                done[tensor] = make(values, tensor.kind.dtype, tensor.shape)
            return done[tensor]

        return mapped_tree(self.tree, one, self.where)

    def _elements(self, tensor: StoredTensor, name: str) -> memoryview:
        """The elements of a tensor, row-major: a slice of the file if they are consecutive there."""
        kind, shape = tensor.kind, tensor.shape
        if kind.dtype is None:
            raise self._tensor_fault(
                name, f"the dtype {quoted(kind.name)[1:-1]} is not supported. Convert it before saving"
            )
        size, numel = kind.dtype.size_bytes, math.prod(shape)
        raw = (
            self._bytes_of_storage(tensor.source, name)
            if isinstance(tensor.source, Storage)
            else memoryview(tensor.source)
        )
        there = raw.nbytes // size
        last = tensor.offset + sum((n - 1) * step for n, step in zip(shape, tensor.strides, strict=False))
        if len(shape) != len(tensor.strides) or (numel and last >= there):
            text = f"shape {quoted(shape)} from element {tensor.offset} on does not fit the {there} of its storage"
            raise self._tensor_fault(name, f"{text}. The file is damaged; fetch it again")
        if numel > there:
            raise self._tensor_fault(name, f"{numel} elements are repeated from {there}. Save it with .contiguous()")
        self.total += numel * size
        if self.total > _MOST_OVERLAP * (len(self.data) + 4096):
            raise self._tensor_fault(name, "the tensors overlap so much that they take more than eight times the file")
        start = tensor.offset * size
        if not numel or _is_row_major(shape, tensor.strides):
            return raw[start : start + numel * size]
        import numpy as np

        flat = np.frombuffer(raw[start:][: (there - tensor.offset) * size], f"V{size}")
        steps = [step * size for step in tensor.strides]
        dense: Any = np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=False))
        return memoryview(dense.reshape(-1).view(np.uint8))

    def _bytes_of_storage(self, storage: Storage, name: str) -> memoryview:
        if storage.key in self.known:
            return self.known[storage.key]
        if storage.key not in self.extents:
            raise self._tensor_fault(name, f"the storage {quoted(storage.key)} is missing. Fetch the file again")
        start, stop, crc = self.extents[storage.key]
        raw = self.data[start:stop]
        wanted = storage.numel * storage.kind.size_bytes
        if wanted > len(raw):
            raise self._tensor_fault(
                name, f"its storage has {len(raw)} bytes instead of {wanted}. Fetch the file again"
            )
        if self.is_checked and crc and zlib.crc32(raw) != crc:
            raise self._tensor_fault(name, "its bytes do not have the checksum of the file. Fetch the file again")
        self.known[storage.key] = raw
        return raw

    def _tensor_fault(self, name: str, text: str) -> FormatError:
        return FormatError(f"{self.where}: tensor {quoted(name)}: {text}.")


def read(path: str | os.PathLike[str], *, is_checked: bool = True) -> TorchFile:
    """Open a checkpoint of PyTorch, or a pickle of plain containers and NumPy arrays.

    The file is mapped: its bytes are read when they are used. `is_checked` compares checksums of zip archives.

    Raises:
        FormatError: the file is damaged, is not such a file, or names classes or functions in its pickle.
    """
    where = os.fspath(path)
    data = mapped(path, "PyTorch")
    return _of_zip(data, where, is_checked) if bytes(data[:4]) == b"PK\x03\x04" else _of_pickles(data, where)


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _named_storage(found: Any) -> Any:
    """A storage from its persistent id; of a module that is pickled with its source, the name of its class."""
    fields: Any = found if type(found) is tuple else ()
    if len(fields) == 4 and fields[0] == "module":
        return fields[1]
    if len(fields) not in (5, 6) or fields[0] != "storage":
        raise ValueError(f"a reference is not to a storage: {quoted(found)}")
    kind, key, numel = getattr(fields[1], "value", None), fields[2], fields[4]
    if not isinstance(kind, TorchDType) or not isinstance(key, str) or type(numel) is not int or numel < 0:
        raise ValueError(f"a storage is described by {quoted(fields[2:])}")
    if len(fields) == 6 and fields[5] is not None:
        raise ValueError("a storage is a view of another one, as PyTorch 0.2 wrote it")
    return Storage(key, kind, numel)


# --- zip archives ----------------------------------------------------------------------------------------------------
def _of_zip(data: memoryview, where: str, is_checked: bool) -> TorchFile:
    try:
        with zipfile.ZipFile(where) as archive:
            entries = {info.filename: info for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error, OverflowError) as error:
        raise FormatError(f"{where}: the zip archive is damaged: {quoted(str(error))}. Fetch the file again.") from None
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise FormatError(f"{where}: is a zip archive without PyTorch's data.pkl. Give a file of torch.save.")
    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}constants.pkl" in entries:
        raise FormatError(
            f"{where}: is a program of TorchScript. Save its tensors: torch.save(module.state_dict(), path)."
        )
    extents = {name: _entry_bytes(data, info, where) for name, info in entries.items() if name.startswith(folder)}
    order = extents.get(f"{folder}byteorder")
    if order and bytes(data[order[0] : order[1]]) != b"little":
        raise FormatError(f"{where}: its numbers are big-endian. Save it again on a little-endian machine.")
    start, stop, _ = extents[pickles[0]]
    tree = decode(io.BytesIO(data[start:stop]), where, _named_storage)
    prefix = f"{folder}data/"
    storages = {name.removeprefix(prefix): extent for name, extent in extents.items() if name.startswith(prefix)}
    return TorchFile(tree, where, data, storages, is_checked)


def _entry_bytes(data: memoryview, info: zipfile.ZipInfo, where: str) -> tuple[int, int, int]:
    """Start and stop of an entry that is stored without compression, and its CRC-32."""

    def fault(text: str) -> FormatError:
        return FormatError(f"{where}: entry {quoted(info.filename)}: {text}.")

    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
        raise fault("it is compressed or encrypted, as torch.save writes none. Save the file again")
    head = info.header_offset
    if not 0 <= head <= len(data) - 30:
        raise fault("it is outside of the file. Fetch the file again")
    signature, name, extra = _LOCAL.unpack_from(data, head)
    start = head + 30 + name + extra
    stop = start + info.file_size
    if signature != b"PK\x03\x04" or stop > len(data):
        raise fault("it is outside of the file. Fetch the file again")
    return start, stop, info.CRC


# --- pickles one after the other -------------------------------------------------------------------------------------
def _of_pickles(data: memoryview, where: str) -> TorchFile:
    stream: Any = data.obj if len(data) else io.BytesIO()  # a mapped file reads as one
    stream.seek(0)
    first = decode(stream, where)
    if first != _MAGIC:
        return TorchFile(first, where, data, {}, is_checked=False)
    decode(stream, where)  # the version
    system = decode(stream, where)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise FormatError(f"{where}: its numbers are big-endian. Save it again on a little-endian machine.")
    storages = dict[str, Storage]()

    def named(found: Any) -> Any:
        storage = _named_storage(found)
        return storages.setdefault(storage.key, storage) if isinstance(storage, Storage) else storage

    tree = decode(stream, where, named)
    keys = decode(stream, where)
    if not isinstance(keys, list) or not all(key in storages for key in keys if isinstance(key, str)):
        raise FormatError(f"{where}: the list of storages is damaged. Fetch the file again.")
    at, extents = int(stream.tell()), dict[str, tuple[int, int, int]]()
    for key in keys:
        storage = storages[key]
        if at + 8 > len(data) or int.from_bytes(data[at : at + 8], "little") != storage.numel:
            raise FormatError(f"{where}: at byte {at}: the size of storage {quoted(key)} is wrong. Fetch it again.")
        extents[key] = at + 8, at + 8 + storage.numel * storage.kind.size_bytes, 0
        at = extents[key][1]
    if at > len(data):
        raise FormatError(f"{where}: it ends at byte {len(data)}, and its storages at {at}. Fetch the file again.")
    return TorchFile(tree, where, data, extents, is_checked=False)

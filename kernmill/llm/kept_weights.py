"""Kept weights: the interleaved matrices of a model's file in the cache folder, which a later start maps.

The setting KEEP_WEIGHTS_MB is the most that they take on disk; 0, the default: none are kept. A file is written whole
or not at all, in a folder of this user alone. It is used if it is of the same model file and layout. Its size and the
digests of its header and of both ends of each matrix must be right. Else it is written again. While the model runs, a
thread compares all bytes with their checksums: a file with a flipped bit is deleted, and a line on stderr says it. The
files that were not used for longest go first. Tests: tests/kernmill/llm/test_kept_weights.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kernmill
from kernmill import FormatError, Tensor, dtypes
from kernmill.ir import blake2b, setting
from kernmill.runtime import compile_cache, default_device, get_device

from ..formats import gguf
from ..formats.disk import Output, mapped, replacing
from ..tensor_bytes import bytes_of, tensor_over, tensor_within
from .model_file import digest_of

__all__ = ["KeptWeights", "clear", "kept_bytes"]

_HEAD = struct.Struct("<8s16sQ")  # magic, digest of the JSON text, its bytes
_MAGIC, _VERSION = b"kmillwts", 2
_MOST_HEADER = 64 << 20
_ALIGNMENT = 64  # bytes: of a cache line, as in an arena
_SAMPLED = 4096  # bytes at both ends of a matrix
_PIECE = 16 << 20  # bytes that are written at a time
_PAGE = 4096  # bytes whose sum is one entry of a checksum
_DTYPES = {str(one): one for one in (dtypes.uint8, dtypes.float32, dtypes.float16, dtypes.bfloat16)}
_OPEN_TO_OTHERS = 0o022


class _Kept(NamedTuple):
    """A matrix: its layout, dtype and shape, where its bytes begin, the digest of both ends of them, and a checksum
    of all."""

    layout: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    digest: str
    checksum: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _DTYPES[self.dtype].size_bytes


class KeptWeights:
    """The interleaved matrices of one model's file: those that are kept, and new ones to be written at the end."""

    def __init__(self, file: gguf.GGUFFile) -> None:
        self._limit = int(setting("KEEP_WEIGHTS_MB")) << 20
        self._entries: dict[str, _Kept] = {}
        self._new: dict[str, tuple[str, Tensor]] = {}
        self._data = memoryview(b"")
        self._mapped: dict[str, Tensor] = {}  # the whole file, by device
        folder = _folder(create=True) if self._limit else None
        if folder is None:
            self._limit = 0
            return
        self._facts = _facts(file)
        self._path = folder / f"{blake2b(self._facts.encode(), digest_size=16).hexdigest()}.weights"
        if self._path.exists():
            with contextlib.suppress(FormatError, OSError, ValueError, KeyError, TypeError, struct.error):
                self._data = mapped(self._path, "weights")
                self._entries = _checked_entries(self._data, self._facts)
                os.utime(self._path)

    def has(self, name: str, layout: str, device: str) -> bool:
        """True if a matrix is kept in this layout, and the device computes with memory of the host."""
        limits = get_device(device).limits
        entry = self._entries.get(name)
        return entry is not None and entry.layout == layout and limits.is_host_visible and limits.wraps_host_memory

    def find(self, name: str, layout: str, device: str) -> Tensor | None:
        """Return a matrix over the pages of the file; None: it is not kept."""
        if not self.has(name, layout, device):
            return None
        return self._over(self._entries[name], device)

    def add(self, name: str, layout: str, data: Tensor) -> None:
        """Keep a new matrix."""
        if self._limit and str(data.dtype) in _DTYPES:
            self._new[name] = layout, data

    def write(self) -> None:
        """Write the file if there is a new matrix; older files go where they would exceed the limit."""
        if not self._new:
            return
        rest = [name for name in self._entries if name not in self._new]
        parts = {name: (e.layout, self._over(e)) for name, e in self._entries.items() if name in rest} | self._new
        size = sum(prod(data.shape) * data.dtype.size_bytes + _ALIGNMENT for _, data in parts.values())
        if size > self._limit:
            print(f"kernmill: the weights are not kept: they take {size >> 20} MiB, and KEEP_WEIGHTS_MB is "
                  f"{self._limit >> 20}.", file=sys.stderr)  # fmt: skip
            return
        _evict(self._path, self._limit - size)
        try:
            with replacing(self._path) as output:
                _write(output, parts, self._facts)
        except FormatError as error:  # the disk is full: the model runs without
            print(f"kernmill: the weights are not kept: {error}", file=sys.stderr)

    def check_behind(self) -> threading.Thread | None:
        """Start a thread that checks all bytes of the matrices in use; None: there are none."""
        if not self._mapped:
            return None
        data, entries, path = self._data, {**self._entries}, self._path
        thread = threading.Thread(target=_check_all, args=(data, entries, path), name="kept weights", daemon=True)
        thread.start()
        return thread

    def _over(self, entry: _Kept, device: str | None = None) -> Tensor:
        """All are parts of one buffer: neighbours are joined, as they are in an arena."""
        device = default_device() if device is None else device
        if device not in self._mapped:
            self._mapped[device] = tensor_over(self._data, dtypes.uint8, (len(self._data),), device)
        return tensor_within(self._mapped[device], entry.start, _DTYPES[entry.dtype], entry.shape)


def kept_bytes() -> int:
    """Return the bytes of all kept weights."""
    return sum(size for _, size, _ in _files())


def clear() -> int:
    """Delete all kept weights; return how many files there were."""
    found = _files()
    for path, _, _ in found:
        path.unlink(missing_ok=True)
    return len(found)


def _folder(*, create: bool) -> Path | None:
    """The folder of kept weights; None: there is none that only this user can write."""
    if setting("CACHE") != "1":
        return None
    folder = Path(str(setting("CACHE_DIR")) or compile_cache.default_cache_folder()) / "weights"
    with contextlib.suppress(OSError):
        if create:
            folder.mkdir(0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & _OPEN_TO_OTHERS):
            return folder
    return None


def _files() -> list[tuple[Path, int, float]]:
    """Path, bytes and time of the last use of each file, the oldest first."""
    folder, found = _folder(create=False), list[tuple[Path, int, float]]()
    for path in [] if folder is None else [*folder.glob("*.weights*")]:
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda one: one[2])


def _evict(own: Path, room: int) -> None:
    others = [(path, size) for path, size, _ in _files() if path != own]
    total = sum(size for _, size in others)
    for path, size in others:
        if total <= room:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def _facts(file: gguf.GGUFFile) -> str:
    """Return everything that kept weights depend on but their layouts."""
    stats = [(status.st_size, status.st_mtime_ns) for status in map(os.stat, file.paths)]
    layout = [setting(name) for name in ("DEVICE", "TARGET", "QUANT_FORM")], get_device(default_device()).target.name
    return f"{_VERSION} {kernmill.__version__} {digest_of(file)} {stats} {layout}"


def _digest(first: memoryview, last: memoryview) -> str:
    return blake2b(bytes(first[:_SAMPLED]) + bytes(last[-_SAMPLED:]), digest_size=16).hexdigest()


def _check_all(data: memoryview, entries: dict[str, _Kept], path: Path) -> None:
    """Compare all matrices with their checksums, at half of the speed that is possible."""
    for name, entry in entries.items():
        found, whole = 0, data[entry.start : entry.start + entry.nbytes]
        size = _rows_of_piece(entry.shape, entry.nbytes) * (entry.nbytes // entry.shape[0])
        for start in range(0, len(whole), size):
            begin = time.perf_counter()
            found = _added(found, whole[start : start + size])
            time.sleep(time.perf_counter() - begin)
        if found != entry.checksum:
            with contextlib.suppress(OSError):
                path.unlink()
            print(f"kernmill: kept weights: {name} in {path} has changed on disk: text of this run may be wrong. The "
                  "file is deleted; start again.", file=sys.stderr)  # fmt: skip
            return


def _up_to_alignment(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _write(output: Output, parts: dict[str, tuple[str, Tensor]], facts: str) -> None:
    entries: dict[str, _Kept] = {}
    start = 0
    for name, (layout, data) in parts.items():
        sampled = _digest(bytes_of(data[:1]), bytes_of(data[-1:]))
        checksum = 0
        for piece in _pieces(data):
            checksum = _added(checksum, piece)
        entries[name] = _Kept(layout, str(data.dtype), data.shape, start, sampled, checksum)
        start = _up_to_alignment(start + entries[name].nbytes)
    text = json.dumps({"facts": facts, "size": start, "entries": entries}).encode()
    head = _HEAD.pack(_MAGIC, blake2b(text, digest_size=16).digest(), len(text)) + text
    output.write(head + bytes(_up_to_alignment(len(head)) - len(head)))
    for _, data in parts.values():
        written = 0
        for piece in _pieces(data):
            output.write(piece)
            written += len(piece)
        output.write(bytes(_up_to_alignment(written) - written))


def _rows_of_piece(shape: tuple[int, ...], nbytes: int) -> int:
    return max(1, _PIECE * shape[0] // nbytes)


def _added(checksum: int, piece: memoryview) -> int:
    """The checksum with a further piece: a CRC-32 of the sums of its pages, which cost as much as reading them."""
    whole = len(piece) // _PAGE * _PAGE
    words = np.frombuffer(piece[:whole], np.uint64).reshape(-1, _PAGE // 8)
    return zlib.crc32(piece[whole:], zlib.crc32(words.sum(1, dtype=np.uint64).tobytes(), checksum))


def _pieces(data: Tensor) -> Iterator[memoryview]:
    """The bytes of a matrix, some rows at a time."""
    rows = _rows_of_piece(data.shape, prod(data.shape) * data.dtype.size_bytes)
    for first in range(0, data.shape[0], rows):
        yield bytes_of(data[first : first + rows])


def _checked_entries(data: memoryview, facts: str) -> dict[str, _Kept]:
    """Return the matrices of a file.

    Raises:
        FormatError: it is damaged, or of another model's file; it also raises errors of Python for a foreign header.
    """
    magic, digest, count = _HEAD.unpack_from(data)
    text = bytes(data[_HEAD.size : _HEAD.size + min(count, _MOST_HEADER)])
    if magic != _MAGIC or blake2b(text, digest_size=16).digest() != digest:
        raise FormatError("kept weights: the header is damaged.")
    header: dict[str, Any] = json.loads(text)
    base = _up_to_alignment(_HEAD.size + len(text))
    if header["facts"] != facts or base + header["size"] != len(data):
        raise FormatError("kept weights: they are of another file, or truncated.")
    entries: dict[str, _Kept] = {}
    for name, (layout, dtype, shape, start, sampled, checksum) in header["entries"].items():
        entry = entries[name] = _Kept(layout, dtype, tuple(shape), base + start, sampled, checksum)
        row = entry.nbytes // max(1, entry.shape[0])
        part = data[entry.start : entry.start + entry.nbytes]
        if _digest(part[:row], part[-row:]) != sampled:
            raise FormatError(f"kept weights: {name} is damaged.")
    return entries

"""Importance matrices: of each weight matrix, the mean square of each column of what it was multiplied with.

Quantizers weight the error of a value by that of its column. Files have llama.cpp's format. A GGUF file has two float32
tensors of a matrix NAME: `NAME.in_sum2`, sums of squares [matrices, columns], and `NAME.counts`, the number of rows
that were summed up [matrices, 1]; a stack of experts has a row for each. Files of the old format, `.dat`, are read:

    i32       number of matrices
    each      i32 length and name, i32 number of calls, i32 number of values, f32 sums of mean squares over the calls
    i32       number of calls of the last one; then i32 length and path of the text

Tests: tests/kernmill/quant/test_importance.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from kernmill.ir import FormatError

from ..formats import gguf, gguf_write
from ..formats.disk import mapped
from ..formats.gguf_types import TYPES, ValueType
from ..formats.quoting import quoted

__all__ = ["Columns", "Importance", "read", "save"]

Array = np.ndarray[Any, Any]
_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAX_NAME = 1 << 10  # bytes, of the old format: more is not a name


@dataclass(slots=True)
class Columns:
    """Sums of squares of the columns of a matrix, or of each of a stack, and how many rows were summed up.

    Shapes: sums (matrices, columns), counts (matrices,). Dtypes: float64.
    """

    sums: Array
    counts: Array

    def add(self, other: Columns) -> None:
        """Add the rows of another text."""
        self.sums, self.counts = self.sums + other.sums, self.counts + other.counts

    def means(self) -> Array:
        """The mean square of each column; 1 for a matrix, such as an expert, without rows. Shapes: as the sums."""
        counts = self.counts[:, None]
        return np.where(counts > 0, self.sums / np.maximum(counts, 1), 1)


@dataclass(slots=True)
class Importance:
    """The columns of the matrices of a model by name, and of what text they are.

    `chunks` is the number of chunks of `size` tokens.
    """

    columns: dict[str, Columns]
    texts: list[str] = field(default_factory=list)
    chunks: int = 0
    size: int = 0
    where: str = ""

    def add(self, other: Importance) -> None:
        """Add the sums of another text.

        Raises:
            FormatError: they are of another model.
        """
        for name, columns in other.columns.items():
            own = self.columns.get(name)
            if own is None:
                self.columns[name] = Columns(columns.sums, columns.counts)
            elif own.sums.shape != columns.sums.shape:
                raise FormatError(
                    f"{other.where}: {quoted(name)} has columns {columns.sums.shape}, and an earlier file has "
                    f"{own.sums.shape}: they are of different models, or formats. Compute one of them again."
                )
            else:
                own.add(columns)
        self.texts += other.texts
        self.chunks, self.size, self.where = self.chunks + other.chunks, other.size or self.size, other.where

    def weights(self, name: str, shape: Sequence[int]) -> Array | None:
        """Return the mean squares for a matrix, or for each of a stack; None: there are none.

        Shapes: a matrix (rows, columns) gives (1, columns), a stack (matrices, rows, columns) (matrices, columns).

        Raises:
            FormatError: they are of another shape, or not finite.
        """
        found = self.columns.get(name)
        if found is None:
            return None
        means, count = found.means(), prod(shape[:-2])
        if means.size != count * shape[-1]:
            raise FormatError(
                f"{self.where}: {quoted(name)} has {means.size} columns, and the matrix of shape {tuple(shape)} needs "
                f"{count * shape[-1]}: the importance matrix is of another model. Compute one for this model."
            )
        if not np.isfinite(means).all() or means.min() < 0:
            raise FormatError(
                f"{self.where}: {quoted(name)} has values that are not finite squares. Compute the importance matrix "
                "again."
            )
        return means.reshape(count, shape[-1])


def save(path: str | os.PathLike[str], found: Importance) -> None:
    """Write a GGUF file, atomically.

    Raises:
        FormatError: the file cannot be written.
    """
    plain, tensors = TYPES[0], dict[str, gguf_write.NewTensor]()
    for name, columns in sorted(found.columns.items()):
        for end, values in ((_SUMS, columns.sums), (_COUNTS, columns.counts[:, None])):
            raw = memoryview(values.astype("<f4").tobytes())
            tensors[name + end] = gguf_write.NewTensor(plain, values.shape, raw)
    metadata: Mapping[str, Any] = {
        "general.type": "imatrix",
        "imatrix.datasets": gguf_write.Typed(ValueType.STRING, found.texts),
        "imatrix.chunk_count": gguf_write.Typed(ValueType.UINT32, found.chunks),
        "imatrix.chunk_size": gguf_write.Typed(ValueType.UINT32, found.size),
    }
    gguf_write.write(path, metadata, tensors)


def read(path: str | os.PathLike[str]) -> Importance:
    """Read a file of either format.

    Raises:
        FormatError: the file cannot be read, or is not an importance matrix.
    """
    data = mapped(path, "importance matrix")
    found = _of_gguf(path) if bytes(data[:4]) == gguf.MAGIC else _of_old(data, os.fspath(path))
    if not found.columns:
        raise FormatError(f"{os.fspath(path)}: it has no columns of matrices. {_REMEDY}")
    return found


_REMEDY = "Give an importance matrix, such as kernmill imatrix writes."


def _of_gguf(path: str | os.PathLike[str]) -> Importance:
    file = gguf.read(path)
    where, columns = file.where, dict[str, Columns]()
    names = [name.removesuffix(_SUMS) for name in file.entries if name.endswith(_SUMS)]
    for name in names:
        if name + _COUNTS not in file.entries:
            raise FormatError(f"{where}: {quoted(name)} has sums and no counts. {_REMEDY}")
        sums, counts = (_floats(file, name + end) for end in (_SUMS, _COUNTS))
        if not counts.size or sums.size % counts.size:
            raise FormatError(f"{where}: {quoted(name)} has {sums.size} sums for {counts.size} counts. {_REMEDY}")
        columns[name] = Columns(sums.reshape(counts.size, -1), counts.ravel())
    metadata = file.metadata
    texts = metadata.read("imatrix.datasets", tuple, ())
    chunks, size = (metadata.read(f"imatrix.chunk_{what}", int, 0) for what in ("count", "size"))
    return Importance(columns, [str(text) for text in texts], chunks, size, where)


def _floats(file: gguf.GGUFFile, name: str) -> Array:
    if file.entries[name].type.name != "F32":
        raise FormatError(
            f"{file.where}: tensor {quoted(name)} is {file.entries[name].type.name}: must be F32. {_REMEDY}"
        )
    return np.frombuffer(file.values(name), "<f4").astype(np.float64)


def _of_old(data: memoryview, where: str) -> Importance:
    """The old format: a mean is a value divided by the number of calls."""
    columns, at = dict[str, Columns](), 0

    def numbers(kind: str, count: int, what: str) -> tuple[Any, ...]:
        nonlocal at
        size = struct.calcsize(kind) * count
        if count < 0 or at + size > len(data):
            raise FormatError(f"{where}: at byte {at}: {what} is not in the file. {_REMEDY}")
        values = struct.unpack_from(f"<{count}{kind}", data, at)
        at += size
        return values

    (count,) = numbers("i", 1, "the number of matrices")
    for _ in range(count):
        (length,) = numbers("i", 1, "the length of a name")
        raw = bytes(numbers("B", length if length <= _MAX_NAME else -1, "a name"))
        calls, size = numbers("i", 2, "the size of a matrix")
        start, at = at, at + 4 * max(0, size)
        if size < 1 or at > len(data):
            raise FormatError(f"{where}: at byte {start}: the values of a matrix are not in the file. {_REMEDY}")
        values = np.frombuffer(data[start:at], "<f4").astype(np.float64)
        columns[raw.decode("utf-8", "replace")] = Columns(values[None], np.array([max(1, calls)], np.float64))
    return Importance(columns, where=where)

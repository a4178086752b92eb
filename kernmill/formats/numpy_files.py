"""NumPy's files: arrays of .npy, and archives of them (.npz). Objects, strings and complex numbers are refused.

Source: numpy.org, numpy.lib.format.
"""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
import zipfile
import zlib
from typing import Any

from kernmill.ir import FormatError

from .disk import mapped
from .quoting import quoted

__all__ = ["MOST_AXES", "read_npy", "read_npz"]

MOST_AXES = 64  # of NumPy's arrays


def read_npz(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of an archive by name.

    Raises:
        FormatError: the file is damaged, or an array has a type that tensors do not have.
    """
    where = os.fspath(path)
    found: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(where) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name in found or name == info.filename:
                    raise _array_fault(where, info.filename, "is there twice, or is not an array (.npy)")
                found[name] = _parsed_array(archive.read(info), where, name)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, struct.error, OverflowError, MemoryError,
            NotImplementedError, RuntimeError, ValueError) as error:  # fmt: skip
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{where}: the zip archive is damaged: {quoted(str(error))}. Fetch it again.") from None
    return found


def read_npy(path: str | os.PathLike[str]) -> Any:
    """The array of a file.

    Raises:
        FormatError: as `read_npz`.
    """
    where = os.fspath(path)
    return _parsed_array(mapped(path, "NumPy"), where, "")


def _array_fault(where: str, name: str, text: str) -> FormatError:
    return FormatError(f"{where}: {f'array {quoted(name)}: ' if name else ''}{text}. Save it again with NumPy.")


def _parsed_array(data: bytes | memoryview, where: str, name: str) -> Any:
    """Check the header against the bytes, which are copied."""
    import numpy as np

    stream = io.BytesIO(data[: 1 << 20])
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise _array_fault(
                where, name, f"version {version} of the format is for names of fields, which is not supported"
            )
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = reader(stream)
    except FormatError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        SyntaxError,
        OverflowError,
        RecursionError,
        MemoryError,
        tokenize.TokenError,
    ) as error:
        raise _array_fault(where, name, f"the header is damaged: {quoted(str(error))}") from None
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or any(type(n) is not int or n < 0 for n in shape):
        raise _array_fault(where, name, f"{dtype} of shape {quoted(shape)} is not supported: numbers and bools are")
    start = stream.tell()
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        raise _array_fault(where, name, f"{dtype} of shape {quoted(shape)} does not fit {len(data) - start} bytes")
    if len(shape) > MOST_AXES:
        raise _array_fault(where, name, f"{len(shape)} axes are not supported: arrays have up to {MOST_AXES}")
    array: Any = np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if is_fortran else "C")
    if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise _array_fault(where, name, "a bool is neither 0 nor 1")
    return np.array(array, dtype.newbyteorder("="), order="C")

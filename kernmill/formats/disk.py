"""Files as bytes: mapped for reading, and written whole or not at all."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Generator
from typing import BinaryIO

from kernmill.ir import FormatError

__all__ = ["mapped", "release", "replacing"]


def mapped(path: str | os.PathLike[str], kind: str) -> memoryview:
    """The bytes of a file of that kind through the page cache: they are read when they are touched.

    The file must not be cut short while it is in use. One that `replacing` replaces stays whole for those who have it
    open.

    Raises:
        FormatError: the file is not there, or cannot be read.
    """
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")
    except OSError as error:
        raise FormatError(f"{where}: cannot be read: {error.strerror}. Give the path of a {kind} file.") from None
    except ValueError as error:  # a device, a pipe; a name with a zero byte
        raise FormatError(f"{where}: cannot be mapped: {error}. Give the path of a {kind} file.") from None


def release(data: memoryview, start: int, stop: int) -> None:
    """Memory for the bytes start..stop of what `mapped` gave back to the system: they are read again when touched.

    Whole pages only. Nothing happens to bytes that are no mapped file, or where the system has no such call.
    """
    file, page = data.obj, mmap.PAGESIZE
    first, last = -(-start // page) * page, stop // page * page
    if isinstance(file, mmap.mmap) and first < last and hasattr(mmap, "MADV_DONTNEED"):
        file.madvise(mmap.MADV_DONTNEED, first, last - first)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """A new file under another name. When the block ends it takes the place of the old one; when it fails, it is gone.

    Raises:
        FormatError: the folder is not there or cannot be written, the disk is full, or a folder or device has the name.
    """
    where = os.fspath(path)
    if os.path.exists(where) and not os.path.isfile(where):  # /dev/null would be gone
        raise FormatError(f"{where}: cannot be written: it is no regular file. Choose another place.")
    temporary = f"{where}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, where)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except BrokenPipeError:
        raise  # not of this file: someone has stopped to read what the block prints
    except OSError as error:
        raise FormatError(f"{where}: cannot be written: {error.strerror}. Choose another place.") from None

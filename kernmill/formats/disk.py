"""Files as bytes: mapped for reading, and written whole or not at all."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Generator
from typing import BinaryIO

from kernmill.ir import FormatError

__all__ = ["Output", "mapped", "opened", "read_into", "release", "replacing"]


def _check_kind(where: str, kind: str) -> None:
    if not where:
        raise FormatError(f"the path is empty. Give the path of a {kind} file.")
    if os.path.exists(where) and not os.path.isfile(where) and not os.path.isdir(where):  # a pipe would seem empty
        raise FormatError(
            f"{where}: cannot be mapped: it is a pipe or a device. Write its output to a file, and give the path "
            f"of that {kind} file.")  # fmt: skip


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], kind: str) -> Generator[tuple[BinaryIO, int]]:
    """A file of that kind and its size, to be read into memory.

    Raises:
        FormatError: the file is not there, or cannot be read, or is a pipe or a device.
    """
    where = os.fspath(path)
    try:
        _check_kind(where, kind)
        with open(where, "rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise FormatError(f"{where}: cannot be read: {error.strerror}. Give the path of a {kind} file.") from None
    except ValueError as error:  # a name with a zero byte
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{where}: cannot be read: {error}. Give the path of a {kind} file.") from None


def read_into(memory: memoryview, file: BinaryIO, start: int) -> memoryview:
    """Fill the memory with the bytes of a file from `start` on, and return it.

    Raises:
        FormatError: the file has become shorter.
    """
    size = len(memory)
    file.seek(start)
    if (count := file.readinto(memory)) != size:  # type: ignore[attr-defined]
        raise FormatError(
            f"{file.name}: at byte {start}: {size} bytes were expected and {count} could be read. The file was "
            "truncated while it was read; load it again."
        )
    return memory


def mapped(path: str | os.PathLike[str], kind: str) -> memoryview:
    """Map a file of that kind through the page cache: bytes are read when they are accessed.

    The file must not be truncated while it is in use. One that `replacing` replaces remains intact for readers that
    have it open.

    Raises:
        FormatError: the file does not exist, or cannot be read, or is a pipe or a device.
    """
    where = os.fspath(path)
    _check_kind(where, kind)
    try:
        with open(where, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")
    except OSError as error:
        raise FormatError(f"{where}: cannot be read: {error.strerror}. Give the path of a {kind} file.") from None
    except ValueError as error:  # a name with a zero byte
        raise FormatError(f"{where}: cannot be mapped: {error}. Give the path of a {kind} file.") from None


def release(data: memoryview, start: int, stop: int) -> None:
    """Return the memory of bytes start..stop of a mapping to the system: they are read again when accessed.

    Whole pages only. Nothing happens for bytes that are not a mapped file, or if the system has no such call.
    """
    file, page = data.obj, mmap.PAGESIZE
    first, last = -(-start // page) * page, stop // page * page
    if isinstance(file, mmap.mmap) and first < last and hasattr(mmap, "MADV_DONTNEED"):
        file.madvise(mmap.MADV_DONTNEED, first, last - first)


class Output:
    """A new file whose errors name it. Other errors in its block, such as from printing, are not changed."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where = file, where

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes at its end."""
        with _written(self._where):
            self._file.write(data)


@contextlib.contextmanager
def _written(where: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise FormatError(f"{where}: cannot be written: {error.strerror}. Choose a different path.") from None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[Output]:
    """Write a new file under a temporary name. At the end of the block it replaces the old file, or the target of a
    link, with its mode; after an error it is deleted.

    Raises:
        FormatError: the folder does not exist or is not writable, the disk is full, or a folder or device has the name.
    """
    where = os.fsdecode(path)
    if not where:
        raise FormatError("the path is empty. Give the path of the file to write.")
    is_old = os.path.exists(where)
    if is_old and not os.path.isfile(where):  # /dev/null would be gone
        raise FormatError(f"{where}: cannot be written: it is not a regular file. Choose a different path.")
    target = os.path.realpath(where)
    temporary = f"{target}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    with _written(where):
        file = open(temporary, "xb")  # noqa: SIM115
    try:
        with _written(where):
            if is_old:
                os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
        yield Output(file, where)
        with _written(where):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()  # the remaining data does not fit the disk either
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise

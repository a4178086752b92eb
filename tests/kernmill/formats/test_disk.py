"""Mapping and replacing files: what is there stays whole."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from kernmill import FormatError
from kernmill.formats.disk import mapped, release, replacing


def test_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert bytes(mapped(path, "test")) == b"abc"
    path.write_bytes(b"")
    assert mapped(path, "test").nbytes == 0
    with pytest.raises(FormatError, match=r"none: cannot be read: No such file .*\. Give the path of a test file\."):
        mapped(tmp_path / "none", "test")
    with pytest.raises(FormatError, match="cannot be mapped"):
        mapped("a\0b", "test")


def test_replacing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    old = mapped(path, "test")
    with replacing(path) as file:
        file.write(b"newer")
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), bytes(old)) == (b"newer", b"old")
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path):
        raise KeyboardInterrupt

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FormatError, match="x: cannot be written: No space left on device"), replacing(path) as file:
        file.write(b"half")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (tmp_path, pipe):
        with pytest.raises(FormatError, match="cannot be written: it is no regular file"), replacing(place):
            pass
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_reader_that_has_left_is_no_fault_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), replacing(tmp_path / "x"):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))  # of a report that the block prints
    assert not list(tmp_path.iterdir())


def test_released_bytes_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x"
    written = os.urandom(5 * mmap.PAGESIZE)
    path.write_bytes(written)
    data = mapped(path, "GGUF")
    assert data == written
    for start, stop in ((0, len(written)), (1, len(written) - 1), (7, 9), (0, 0)):
        release(data, start, stop)
        assert data == written


def test_only_mapped_files_are_released() -> None:
    release(memoryview(bytes(3 * mmap.PAGESIZE)), 0, 3 * mmap.PAGESIZE)

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
        with pytest.raises(FormatError, match="cannot be written: it is not a regular file"), replacing(place):
            pass
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_pipe_cannot_be_mapped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: opening it would wait
    with pytest.raises(FormatError, match=r"pipe: cannot be mapped: it is a pipe or a device\. .* path of that GGUF"):
        mapped(tmp_path / "pipe", "GGUF")
    with pytest.raises(FormatError, match="cannot be read: Is a directory"):
        mapped(tmp_path, "GGUF")


def test_what_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    inner, link, pipe = tmp_path / "inner", tmp_path / "link", tmp_path / "pipe"
    inner.mkdir()
    link.symlink_to(inner / "x")
    for text in (b"new", b"newer"):  # a link to nothing, then to a file
        with replacing(link) as file:
            file.write(text)
        assert (link.is_symlink(), (inner / "x").read_bytes()) == (True, text)
    os.mkfifo(pipe)
    link.unlink()
    link.symlink_to(pipe)
    with pytest.raises(FormatError, match="link: cannot be written: it is not a regular file"), replacing(link):
        pass
    assert (link.is_symlink(), pipe.is_fifo()) == (True, True)
    assert sorted(tmp_path.rglob("*")) == [inner, inner / "x", link, pipe]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(mode)
    with replacing(path) as file:
        (beside,) = (p for p in tmp_path.iterdir() if p != path)
        assert beside.stat().st_mode & 0o777 == mode  # before there is anything to see in it
        file.write(b"new")
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (mode, b"new")


def test_a_full_disk_of_another_file_is_no_fault_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, replacing(tmp_path / "x"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # of a report that the block prints
    assert type(caught.value) is OSError
    assert not list(tmp_path.iterdir())


def test_a_full_disk_while_bytes_wait_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, mode: real("/dev/full", "wb") if mode == "xb" else real(path, mode)
    )
    for data in (b"few", bytes(1 << 20)):
        with pytest.raises(FormatError, match="x: cannot be written: No space left"), replacing(tmp_path / "x") as file:
            file.write(data)
    assert not list(tmp_path.iterdir())


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

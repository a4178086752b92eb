"""A session: a process that runs kernels in separate memory, behind a transport. Here it is an emulator.

`Transport` is the interface that another way to a Hexagon has to have: bytes in order to the resident program, bytes
back within a time, and an end. On a phone it would be the vendor's remote calls; that is not written.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Final

from kernmill.ir import DeviceError, OutOfMemoryError

from ..cpu.llvm_codegen import compile_ir
from .hexagon import hexagon_host
from .linker import link, static_program
from .resident import CODE_BYTES, COMMAND_BYTES, Command, resident_ir
from .session_memory import SESSION_PAGE, SESSION_PIECES, SharedMemory

__all__ = ["EMULATED_VERSION", "EmulatorTransport", "Session", "SessionLost", "Transport", "emulator"]

_BASE: Final = 0x21000  # address of the resident program: with the same offset in a page as in its file
_PIPE_BYTES: Final = 1 << 20
_LINE: Final = 128
_LAST_ADDRESS: Final = 0xFFFFF000  # above it are error numbers
EMULATED_VERSION: Final = 67


class SessionLost(DeviceError):
    """The session has ended, or gave no answer in time."""


class Transport(ABC):
    """Bytes to a resident program and back."""

    @abstractmethod
    def write(self, data: bytes | memoryview) -> None:
        """Send all bytes. Raises SessionLost if the session has ended."""

    @abstractmethod
    def read(self, target: memoryview) -> None:
        """Receive bytes until the target is full. Raises SessionLost if the session ended, or takes too long."""

    @abstractmethod
    def share(self, number: int, size_bytes: int) -> tuple[int, memoryview]:
        """Return a piece of memory: the number by which MAP of the resident program finds it, and the host's view."""

    @abstractmethod
    def close(self) -> None:
        """End the session."""


def emulator() -> str:
    """Return the emulator's path: QEMU_HEXAGON, or qemu-hexagon of the PATH.

    Raises:
        DeviceError: there is none.
    """
    found = os.environ.get("QEMU_HEXAGON") or shutil.which("qemu-hexagon")
    if not found:
        raise DeviceError(
            "HTP: no Hexagon can be reached: there is no qemu-hexagon. Install the package qemu-user, or set "
            "QEMU_HEXAGON to the emulator's path."
        )
    return found


@cache
def _program() -> tuple[bytes, dict[str, int]]:
    """The resident program, and the addresses of its functions."""
    return static_program(compile_ir(resident_ir(), hexagon_host(EMULATED_VERSION)), _BASE)


class EmulatorTransport(Transport):
    """A process under qemu-hexagon, behind two pipes. `limit_s`: the longest wait for an answer."""

    def __init__(self, name: str, limit_s: float) -> None:
        self.name, self.limit_s = name, limit_s
        # memory of pages that exist once they are written
        self.files = [os.memfd_create(f"kernmill-{name}") for _ in range(SESSION_PIECES)]
        self.folder = tempfile.TemporaryDirectory(prefix="kernmill-htp-")
        path = os.path.join(self.folder.name, "resident")
        with open(path, "wb") as file:
            file.write(_program()[0])
        os.chmod(path, 0o700)
        try:
            self.process = subprocess.Popen([emulator(), path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.DEVNULL, bufsize=0, start_new_session=True,
                                            pass_fds=self.files)  # fmt: skip
        except OSError as error:
            raise DeviceError(f"{name}: the emulator cannot start ({error}). Set QEMU_HEXAGON to its path.") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to, self.back = self.process.stdin.fileno(), self.process.stdout.fileno()
        for pipe in (self.to, self.back):
            with contextlib.suppress(OSError):  # above the user's limit: slower, not wrong
                fcntl.fcntl(pipe, 1031, _PIPE_BYTES)  # F_SETPIPE_SZ

    def write(self, data: bytes | memoryview) -> None:
        """Send all bytes."""
        view, at = memoryview(data).cast("B"), 0
        try:
            while at < len(view):
                self._wait(self.to, is_write=True)
                at += os.write(self.to, view[at : at + _PIPE_BYTES])
        except OSError:
            self._ended()

    def read(self, target: memoryview) -> None:
        """Receive bytes until the target is full."""
        at = 0
        while at < len(target):
            self._wait(self.back, is_write=False)
            count = os.readv(self.back, [target[at:]])
            if not count:
                self._ended()
            at += count

    def share(self, number: int, size_bytes: int) -> tuple[int, memoryview]:
        """A file in memory, which the process has inherited."""
        file = self.files[number]
        os.ftruncate(file, size_bytes)
        return file, memoryview(mmap.mmap(file, size_bytes))

    def _wait(self, pipe: int, *, is_write: bool) -> None:
        poll = select.poll()
        poll.register(pipe, select.POLLOUT if is_write else select.POLLIN)
        if not poll.poll(self.limit_s * 1000):
            self.close()
            raise SessionLost(f"{self.name}: the session gave no answer within {self.limit_s:g} s, and was ended.")

    def _ended(self) -> None:
        self.process.kill()
        raise SessionLost(f"{self.name}: the session ended (status {self.process.wait()}).")

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        while self.files:
            os.close(self.files.pop())
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.folder.cleanup()


class Session:
    """The host's side: memory under a limit, code, and batches of launches."""

    def __init__(self, name: str, transport: Transport, limit_bytes: int) -> None:
        self.name, self.transport, self.limit_bytes = name, transport, limit_bytes
        self.used_bytes = 0
        self.symbols = _program()[1]
        self.code = self.symbols["code"]
        self.answer(Command.PING)
        self.memory = SharedMemory(limit_bytes, self._mapped)

    def _mapped(self, number: int, size: int) -> tuple[int, memoryview] | None:
        file, view = self.transport.share(number, size)
        address = self.answer(Command.MAP, file, size)
        return None if address > _LAST_ADDRESS else (address, view)

    def send(self, command: Command, address: int = 0, count: int = 0) -> None:
        """Send a command."""
        self.transport.write(struct.pack("<3I", command, address, count).ljust(COMMAND_BYTES, b"\0"))

    def answer(self, command: Command, address: int = 0, count: int = 0) -> int:
        """Send a command, and return its answer."""
        self.send(command, address, count)
        data = bytearray(8)
        self.transport.read(memoryview(data))
        return int.from_bytes(data, "little", signed=True)

    def allocate(self, size_bytes: int) -> tuple[int, int]:
        """Take memory: its address, and its size in whole pages.

        Raises:
            OutOfMemoryError: the session's limit would be passed.
        """
        size = max(SESSION_PAGE, -(-size_bytes // SESSION_PAGE) * SESSION_PAGE)
        if self.used_bytes + size > self.limit_bytes:
            raise OutOfMemoryError(
                f"{self.name}: {size:,} bytes more than {self.used_bytes:,} exceed the session's limit of "
                f"{self.limit_bytes:,}. Use more sessions, or free some tensors."
            )
        address = self.memory.take(size)
        if not address:
            raise OutOfMemoryError(f"{self.name}: no {size:,} bytes next to each other are free. Free some tensors.")
        self.used_bytes += size
        return address, size

    def free(self, address: int, size_bytes: int) -> None:
        """Give memory back."""
        self.memory.give(address, size_bytes)
        self.used_bytes -= size_bytes

    def copy_in(self, address: int, data: bytes | memoryview) -> None:
        """Bytes to the session's memory."""
        view = memoryview(data).cast("B")
        if len(view):
            self.memory.view(address, len(view))[:] = view

    def copy_out(self, target: memoryview, address: int) -> None:
        """Bytes of the session's memory."""
        if len(target):
            target[:] = self.memory.view(address, len(target))

    def load(self, data: bytes, name: str) -> int:
        """Link a kernel to the next free address of the code, and return that of its function. Code is never written
        twice: an emulator would go on with what it has translated."""
        image = link(data, self.code, self.symbols)
        end = -(-(self.code + image.size_bytes) // _LINE) * _LINE
        if end > self.symbols["code"] + CODE_BYTES:
            raise DeviceError(f"{self.name}: kernels exceed the {CODE_BYTES:,} bytes of code of a session. Close it.")
        self.send(Command.COPY_IN, self.code, len(image.data))  # an emulator notices what it writes itself
        self.transport.write(image.data)
        self.code = end
        return image.symbols[name]

    def run(self, table: int, entries: Sequence[tuple[int, Sequence[int], int]], *, is_timed: bool) -> list[int]:
        """Run launches (function, arguments, iterations) in one command; with `is_timed` one each, in nanoseconds."""
        at, rows, arguments = table + 16 * len(entries), list[bytes](), list[bytes]()
        for function, values, count in entries:
            rows.append(struct.pack("<4I", function, at, 0, count))
            arguments.append(struct.pack(f"<{len(values)}q", *values))
            at += 8 * len(values)
        self.copy_in(table, b"".join([*rows, *arguments]))
        if is_timed:
            return [self.answer(Command.RUN, table + 16 * number, 1) for number in range(len(entries))]
        self.answer(Command.RUN, table, len(entries))
        return []

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(DeviceError):
            self.send(Command.END)
            time.sleep(0)
        self.transport.close()

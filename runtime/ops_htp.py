"""HTP: a Hexagon NPU. `HTP:0` to `HTP:3` are sessions, each with separate memory and a limit on it.

Here a session is a process under `qemu-hexagon`: the results are a Hexagon's, its times are not. Kernels are compiled
in another process, since LLVM's code generator for Hexagon ends with an assertion for some. Floats are scalars (no
emulator runs vectors of them); products of bytes are vectors.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from kernmill.ir import CompileError, DeviceError, SettingError, cached_property
from kernmill.renderers import LLVMRenderer, Renderer

from .cpu.llvm_codegen import llvm_version
from .cpu.llvm_process import CompilerProcess
from .device import Call, Device, Program, Properties, lose
from .htp.hexagon import hexagon_host, hexagon_target
from .htp.session import EMULATED_VERSION, EmulatorTransport, Session, SessionLost, emulator
from .htp.session_memory import LARGEST_BLOCK
from .memory.buffer import Buffer

__all__ = ["HtpDevice"]

_SESSIONS: Final = 4
_SESSION_BYTES: Final = 3_500_000_000  # that one session of a phone maps
_LIMIT_S: Final = 60.0  # for one batch of kernels
_COMPILE_S: Final = 120.0
_TABLE_BYTES: Final = 4 << 20
_REMEDY: Final = "Compute it on the CPU: move its tensors by to('LLVM')."

_compiler: CompilerProcess | None = None
_lock = threading.Lock()


class _SessionMemory(NamedTuple):
    """Memory of a session."""

    address: int
    capacity_bytes: int


class HtpDevice(Device):
    """One session."""

    CONTRACT = 1
    OPTIONS: Mapping[str, str] = {
        "limit": f"bytes of a session's memory (default {_SESSION_BYTES})",
        "seconds": f"the longest wait for a batch of kernels (default {_LIMIT_S:g})",
    }
    kind = "accel"

    def __init__(self, name: str, index: int = 0, options: Mapping[str, str] | None = None) -> None:
        super().__init__(name, index, options)
        self.description = f"Hexagon v{EMULATED_VERSION}, session {index}, under qemu-hexagon"
        self.limit_bytes = int(self._number("limit", _SESSION_BYTES))
        self.session = Session(name, EmulatorTransport(name, self._number("seconds", _LIMIT_S)), self.limit_bytes)
        self.lock = threading.RLock()  # a command and its answer belong together
        self.table = self.session.allocate(min(_TABLE_BYTES, self.limit_bytes // 4))

    def _number(self, key: str, default: float) -> float:
        text = self.options.get(key, "")
        try:
            value = float(text or default)
        except ValueError:
            value = -1.0
        if value <= 0:
            raise SettingError(f"{self.name}?{key}={text}: must be a number above 0.")
        return value

    @contextmanager
    def _one_command(self) -> Generator[None]:
        """One command at a time. Mark the device as lost if its session ends: its next use opens a new one."""
        try:
            with self.lock:
                yield
        except SessionLost as error:
            lose(self, str(error))
            raise DeviceError(self.lost) from error

    # --- properties
    @classmethod
    def devices(cls) -> list[int]:
        """Four sessions. Raises DeviceError without an emulator."""
        emulator()
        return list(range(_SESSIONS))

    @cached_property
    def renderer(self) -> Renderer:
        """LLVM IR for HVX's ints and scalar floats."""
        return LLVMRenderer(hexagon_target(EMULATED_VERSION))

    def props(self) -> Properties:
        """The session's limit, and the largest buffer."""
        free = self.limit_bytes - self.session.used_bytes
        return Properties(self.limit_bytes, free, min(LARGEST_BLOCK, self.limit_bytes), self.limit_bytes, alignment=128,
                          slice_alignment=128, is_host_visible=False, wraps_host_memory=False)  # fmt: skip

    def cache_tag(self) -> str:
        """The version, and LLVM's."""
        return f"{self.target.name} {llvm_version()}"

    # --- memory
    def allocate(self, size_bytes: int) -> _SessionMemory:
        """Memory of the session, in whole pages."""
        with self._one_command():
            return _SessionMemory(*self.session.allocate(size_bytes))

    def free(self, block: _SessionMemory) -> None:
        """Give it back."""
        with self._one_command():
            self.session.free(block.address, block.capacity_bytes)

    def copy_in(self, target: Buffer, source: memoryview) -> None:
        """Through memory that both have."""
        with self._one_command():
            self.session.copy_in(target.address, source)

    def copy_out(self, target: memoryview, source: Buffer) -> None:
        """Through memory that both have."""
        with self._one_command():
            self.session.copy_out(target, source.address)

    # --- programs
    def compile(self, name: str, source: str) -> bytes:
        """An object, made in a process of its own: LLVM ends with an assertion for some kernels."""
        return self.compile_later(name, source)()

    def compile_later(self, name: str, source: str) -> Callable[[], bytes]:
        """The same, while this process goes on."""
        return self._compile_later(f"kernel {name}", source, "emit_object")

    def _compile_later(self, name: str, source: str, how: str) -> Callable[[], bytes]:
        host, compiler = hexagon_host(EMULATED_VERSION), _compiler_process()
        answer = compiler.submit(source, host.cpu, ",".join(host.features), host.triple, _COMPILE_S, how=how)

        def wait() -> bytes:
            try:
                made = answer()
            except queue.Empty:
                _forget_compiler()
                raise CompileError(f"{name}: LLVM takes more than {_COMPILE_S:g} s for it. {_REMEDY}") from None
            if made is None:
                what = "ended while it compiled it" if compiler.is_lost else "refuses it"
                raise CompileError(f"{name}: LLVM's code generator for Hexagon {what}. {_REMEDY}")
            return made

        return wait

    def assembly(self, source: str) -> str:
        """The instructions."""
        return self._compile_later("assembly", source, "emit_assembly")().decode()

    def load(self, name: str, binary: bytes) -> Program:
        """The kernel, linked to its address in the session."""
        with self._one_command():
            return Program(name, self.session.load(binary, name))

    # --- launches
    def run(self, calls: Sequence[Call], *, is_timed: bool = False) -> list[int]:
        """As batches, each one command."""
        times: list[int] = []
        entries = [(c.program.handle, [*(b.address for b in c.buffers), *c.variables], c.threads) for c in calls]
        room, batch = self.table[1] - 64, list[tuple[int, list[int], int]]()
        for entry in entries:
            size = 16 + 8 * len(entry[1])
            if size > room:
                times += self._run_batch(batch, is_timed)
                room, batch = self.table[1] - 64, []
            room, batch = room - size, [*batch, entry]
        return times + self._run_batch(batch, is_timed)

    def _run_batch(self, batch: list[tuple[int, list[int], int]], is_timed: bool) -> list[int]:
        with self._one_command():
            return self.session.run(self.table[0], batch, is_timed=is_timed) if batch else []

    def close(self) -> None:
        """End the session's process."""
        self.session.close()


def _compiler_process() -> CompilerProcess:
    global _compiler
    with _lock:
        if _compiler is None or not _compiler.is_usable:
            _compiler = CompilerProcess()
        return _compiler


def _forget_compiler() -> None:
    global _compiler
    with _lock:
        if _compiler is not None:
            _compiler.close()
        _compiler = None

"""LLVM: the CPU, through LLVM IR compiled to object bytes, loaded by our own loader, run by the native pool."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from kernmill.ir import OutOfMemoryError, np, process_lock
from kernmill.renderers import LLVMRenderer, Renderer

from .chains import find_chains
from .cpu.amx_trial import matrix_unit
from .cpu.cpu_target import host_target
from .cpu.host import this_host
from .cpu.llvm_codegen import assembly, assembly_later, compile_ir, compile_ir_later, compiler_process, llvm_version
from .cpu.loader import load_object
from .cpu.pool import ENTRY_WORDS, Launch, LaunchTable, copy_function, default_pool, expect_pool
from .cpu.probe import measured_machine
from .device import SLICE_NS, Batch, BufferCopy, Call, Device, Program, Properties
from .memory.allocator import available_memory, total_memory
from .memory.buffer import Buffer
from .tape import Tape

__all__ = ["LlvmDevice"]

_SHARED = 3  # times `Machine.fork_ns`: less work is not worth handing to another thread
_MOST_CHUNKS = 256
_lock = process_lock()


class LlvmDevice(Device):
    """This machine's CPU."""

    CONTRACT = 1
    description = "this CPU, through LLVM"

    def __init__(self, name: str, index: int = 0) -> None:
        super().__init__(name, index)
        self.host = this_host()
        self._renderer: Renderer | None = None

    @property
    def renderer(self) -> Renderer:  # pyright: ignore[reportIncompatibleVariableOverride]
        """LLVM IR for the host's vector registers and its matrix unit."""
        with _lock:  # a cached property's, in Python 3.11, outlives a fork
            if self._renderer is None:
                target = host_target(self.host, matrix_unit(self.host)[0])
                row = measured_machine(self.host)
                self._renderer = LLVMRenderer(target if row is None else replace(target, machine=row))
            return self._renderer

    def details(self) -> list[str]:
        """Return a message about the matrix unit, if there is one."""
        return [text] if (text := matrix_unit(self.host)[1]) else []

    def props(self) -> Properties:
        """The machine's memory."""
        return Properties(total_memory(), available_memory(), group="host")

    def cache_tag(self) -> str:
        """The CPU's name, caches and features, and LLVM's version."""
        caches = f"{self.target.l1_bytes} {self.target.l2_bytes}"
        return f"{self.target.name} {self.host.cpu} {caches} {','.join(self.host.features)} {llvm_version()}"

    def compile(self, name: str, source: str) -> bytes:
        """Object bytes."""
        return compile_ir(source, self.host)

    def expect_many(self) -> None:
        """Start the compiling process, which takes a while, with the code that every launch needs."""
        if compiler_process() is not None:
            expect_pool()

    def compile_later(self, name: str, source: str) -> Callable[[], bytes]:
        """Object bytes, compiled in another process while this one lowers the next kernel."""
        return compile_ir_later(source, self.host)

    def assembly(self, source: str) -> str:
        """The machine's instructions."""
        return assembly(source, self.host)

    def assembly_later(self, source: str) -> Callable[[float | None], tuple[str, list[int]]]:
        """The same with the lines of the source, made in another process."""
        return assembly_later(source, self.host)

    def load(self, name: str, binary: bytes) -> Program:
        """The object in executable memory."""
        return Program(name, load_object(binary, [name], _EXTERNS))

    def prepare(self, calls: Sequence[Call]) -> Batch:
        """A native table: repeating it costs one call."""
        return _LaunchBatch(self, calls)

    def run(self, calls: Sequence[Call], *, is_timed: bool = False) -> list[int]:
        """One native call for the whole list."""
        return _LaunchBatch(self, calls).run(is_timed=is_timed)


class _LaunchBatch(Batch):
    """The cached native launch table; and a shorter one, with chains of launches as one entry, over its arguments.
    To time each launch they run one after another."""

    def __init__(self, device: LlvmDevice, calls: Sequence[Call]) -> None:
        super().__init__(device, calls)
        fork_ns = device.target.machine.fork_ns  # of work, that one thread takes at least
        limits = fork_ns, _SHARED * fork_ns, _MOST_CHUNKS
        self.short_ends: Sequence[int] = range(1, len(calls) + 1)
        self.table = self.short = LaunchTable([
            Launch(c.program.handle.symbols[c.program.name], [*[b.address for b in c.buffers], *c.variables], c.threads,
                   chunk := c.chunk(*limits), c.slice(chunk, SLICE_NS))
            for c in calls
        ])  # fmt: skip
        host = device.host
        if len(calls) > 1 and (chains := find_chains(calls, (host.l1, host.l2 // 2), host.threads())):
            self.short = LaunchTable([
                self.table.linked(c.first, c.end, c.parts, c.together,
                                  chunk := c.chunk(*limits), c.slice(chunk, SLICE_NS))
                for c in chains
            ])  # fmt: skip
            self.short_ends, self.is_chained = [c.end for c in chains], True

    def place(self, entry: int, slot: int) -> tuple[Any, int]:
        return self.table.argument(entry, slot)

    def setter(self, places: Sequence[tuple[int, int]]) -> Callable[[int], object]:
        found = [self.table.argument(entry, len(self.calls[entry].buffers) + number) for entry, number in places]
        return partial(np.asarray(found[0][0]).__setitem__, np.array([index for _, index in found]))

    def native(self) -> Sequence[int]:
        """The entries of the table."""
        return self.short.rows()

    def joined(self, parts: Sequence[Batch | BufferCopy]) -> Batch:
        """All of it as one table."""
        return _JoinedBatch(self.device, parts)

    def run(self, *, is_timed: bool = False) -> list[int]:
        pool, times, before = default_pool(), [], len(_refused)
        if is_timed:
            times = pool.run_timed(self.table)
        else:
            pool.run(self.short)
        if len(_refused) > before:
            self.refuse()
        return times

    @property
    def ends(self) -> Sequence[int]:
        """With chains, as one entry each."""
        return self.short_ends

    def timed(self, tape: Tape) -> None:
        """The native walk writes the clock."""
        before = len(_refused)
        default_pool().run_clocked(self.short, tape.at)
        if len(_refused) > before:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raise OutOfMemoryError. The kernel is unknown: every batch that ran meanwhile gets the error."""
        raise OutOfMemoryError(
            f"{self.device.name}: out of memory: a kernel needs {_refused[-1]:,} bytes per thread. Free some "
            "tensors, or lower THREADS."
        )


class _JoinedBatch(_LaunchBatch):
    """Batches of several devices of one memory, and the copies between them, as one table."""

    def __init__(self, device: Device, parts: Sequence[Batch | BufferCopy]) -> None:
        Batch.__init__(self, device, ())
        self.parts, self.table = parts, LaunchTable([
            Launch(copy_function(), (part.target.address, part.source.address, part.target.nbytes))
            for part in parts if isinstance(part, BufferCopy)
        ])  # fmt: skip
        copies, rows = self.table.rows(), list[int]()
        for part in parts:
            if isinstance(part, BufferCopy):
                rows += copies[:ENTRY_WORDS]
                del copies[:ENTRY_WORDS]
            else:
                rows += part.native() or ()
        self.short = LaunchTable.of_rows(rows)

    def binder(self, entry: int, slot: int) -> Callable[[Buffer], object]:
        array, index = self.table.argument(entry, slot)
        return lambda buffer: array.__setitem__(index, buffer.address)


_refused: list[int] = []  # bytes, by kernels that computed nothing; it only grows
_tell: Any = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_refused.append)
_EXTERNS = {"km_no_memory": ctypes.cast(_tell, ctypes.c_void_p).value or 0}

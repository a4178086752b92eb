"""LLVM: the CPU, through LLVM IR compiled to object bytes, loaded by our own loader, run by the native pool."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from kernmill.ir import DType, Ops, OutOfMemoryError, Target, Unit, dtypes, np, process_lock
from kernmill.renderers import LLVM_OPS, LLVMRenderer, Renderer

from .chains import find_chains
from .cpu.amx_trial import matrix_unit
from .cpu.host import Host, this_host
from .cpu.llvm_codegen import assembly, compile_ir, compile_ir_later, compiler_process, llvm_version
from .cpu.loader import load_object
from .cpu.pool import ENTRY_WORDS, Launch, LaunchTable, copy_function, default_pool, expect_pool
from .device import Batch, BufferCopy, Call, Device, Program, Properties
from .memory.allocator import available_memory, total_memory
from .memory.buffer import Buffer

__all__ = ["LlvmDevice"]

_SHARED_NS = 15_000.0  # less work than this is not worth handing to another thread
_CHUNK_NS = 5_000.0  # that one thread takes at least
_MOST_CHUNKS = 256
_SLICE_NS = 10_000_000.0  # of one thread's work, after which it may be interrupted: a person notices 100 ms
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
                self._renderer = LLVMRenderer(target, has_tiles=self.host.has("amx-tile"), has_vnni=has_vnni(self.host))
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
        self.ends: Sequence[int] = range(1, len(calls) + 1)  # of the shorter table's entries
        self.table = self.short = LaunchTable([
            Launch(c.program.handle.symbols[c.program.name], [*[b.address for b in c.buffers], *c.variables], c.threads,
                   chunk := c.chunk(_CHUNK_NS, _SHARED_NS, _MOST_CHUNKS), c.slice(chunk, _SLICE_NS))
            for c in calls
        ])  # fmt: skip
        host = device.host
        if len(calls) > 1 and (chains := find_chains(calls, (host.l1, host.l2 // 2), host.threads())):
            self.short = LaunchTable([
                self.table.linked(c.first, c.end, c.parts, c.together,
                                  chunk := c.chunk(_CHUNK_NS, _SHARED_NS, _MOST_CHUNKS), c.slice(chunk, _SLICE_NS))
                for c in chains
            ])  # fmt: skip
            self.ends = [c.end for c in chains]

    def place(self, entry: int, slot: int) -> tuple[Any, int]:
        return self.table.argument(entry, slot)

    def setter(self, places: Sequence[tuple[int, int]]) -> Callable[[int], object]:
        found = [self.table.argument(entry, len(self.calls[entry].buffers) + number) for entry, number in places]
        return partial(np.asarray(found[0][0]).__setitem__, np.array([place for _, place in found]))

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

    def timed(self) -> tuple[Sequence[int], Sequence[int]]:
        """With chains, as one entry each."""
        before = len(_refused)
        clock = default_pool().run_clocked(self.short)
        if len(_refused) > before:
            self.refuse()
        return clock, self.ends

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
        array, place = self.table.argument(entry, slot)
        return lambda buffer: array.__setitem__(place, buffer.address)


_refused: list[int] = []  # bytes, by kernels that computed nothing; it only grows
_tell: Any = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_refused.append)
_EXTERNS = {"km_no_memory": ctypes.cast(_tell, ctypes.c_void_p).value or 0}


def compute_dtypes(has_half: bool) -> frozenset[DType]:
    """Return the dtypes with native arithmetic: never bfloat16, float16 if there are instructions for it."""
    return frozenset(dtypes.data) - ({dtypes.bfloat16} if has_half else {dtypes.bfloat16, dtypes.float16})


def has_vnni(host: Host) -> bool:
    """True if one instruction computes dot products of bytes: AVX512-VNNI, AVX-VNNI."""
    return host.has("avx512vnni") and host.has("avx512vl") if host.has("avx512f") else host.has("avxvnni")


def dot_types(host: Host) -> frozenset[tuple[DType, DType]]:
    """Return the operands of dot products: unsigned by signed bytes, in one instruction or in a few. With AVX512-BF16
    also pairs of bfloat16, on AMD's CPUs: they do twice as many as of float32, Intel's half as many."""
    wide = host.has("avx512f")
    has_bytes = has_vnni(host) or host.has("avx512bw" if wide else "ssse3")
    has_pairs = wide and host.has("avx512bf16") and host.has("avx512vl") and host.cpu == "znver4"
    found = {(dtypes.uint8, dtypes.int8): has_bytes, (dtypes.bfloat16, dtypes.bfloat16): has_pairs}
    return frozenset(pair for pair, is_there in found.items() if is_there)


def host_target(host: Host, units: tuple[Unit, ...] = ()) -> Target:
    """Return the features for generated code on this CPU, with these matrix units."""
    wide, is_amd = host.has("avx512f"), host.has("sse4a")  # which AMD's CPUs alone have
    vector = 64 if wide else 32 if host.has("avx2") or host.has("avx") else 16
    ops = LLVM_OPS | ({Ops.SCALE} if wide else set())
    ops = ops if host.arch != "x86_64" or host.has("fma") else ops - {Ops.FMA}
    if host.arch == "x86_64" and not (host.has("sse4.1") or host.has("avx")):
        ops = ops - {Ops.FLOOR, Ops.CEIL, Ops.TRUNC, Ops.ROUND}
    return Target(
        name=f"llvm-{host.arch}-{vector * 8}{'-amx' if units else ''}",
        vector_bytes=vector,
        vector_registers=32 if wide or host.arch == "aarch64" else 16,
        ops=ops,
        storage_dtypes=frozenset(dtypes.data)
        - (set() if host.arch != "x86_64" or host.has("f16c") else {dtypes.float16}),
        compute_dtypes=compute_dtypes(host.has("avx512fp16")),
        dots=dot_types(host),
        dot_most=255 if has_vnni(host) else 127,
        table_lanes=64 if host.has("avx512bw") else 32 if host.has("avx2") else 16 if host.has("ssse3") else 0,
        table_bytes=128 if host.has("avx512vbmi") else 0,
        units=units,
        has_threads=True,
        has_gathers=host.has("avx512fp16"),  # CPUs made with the mend against Downfall, not mended by microcode
        has_masks=wide or host.has("avx2"),
        min_mask_lane_bytes=1 if host.has("avx512bw") else 4,
        has_fast_nontemporal_stores=host.cpu == "sapphirerapids" or is_amd,
        has_hardware_prefetch=is_amd,
        l1_bytes=host.l1,
        l2_bytes=host.l2,
    )

"""What the machine can do at most, measured in the same run: small loops in LLVM IR that do one thing only.

* fma: float32 multiply-adds of a register tile, its operands loaded from L1. Units: flop.
* vnni: the same tile of 8-bit products in fours (AVX-512 VNNI). Units: operations.
* read, copy: a buffer that is read once; or copied into another. Units: bytes, both sides of a copy.

Where several loops are tried (streams, prefetching, ordinary or streaming stores), the fastest is the ceiling.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .row import Sampler
from .timing import call_sampler, timed

__all__ = ["Place", "ceiling_sampler"]

_TILE = {16: (6, 4), 8: (6, 2), 4: (6, 2)}  # lanes: rows and vectors of the register tile
_K = 48  # steps of a tile: its operands stay in L1
_BUFFER_BYTES = 64 << 20  # all threads together: as much as a 4096 x 4096 float32 matrix
_SUMS = 1 << 16  # what reading leaves behind
_LINE = 64
_PASSES = 8  # of several threads: starting them must not count
STREAMS = (1, 4)

_TILE_TEXT = """
DECLARE
define void @run(ptr %operands, ptr %result, i64 %repeats) {
entry:
  %rows = getelementptr VECTOR, ptr %operands, i64 PANEL
  br label %loop
loop:
  %r = phi i64 [0, %entry], [%r2, %after]
OUTER
  br label %steps
steps:
  %k = phi i64 [0, %loop], [%k2, %steps]
  %b = phi ptr [%operands, %loop], [%bn, %steps]
  %a = phi ptr [%rows, %loop], [%an, %steps]
INNER
  %bn = getelementptr VECTOR, ptr %b, i64 COLUMNS
  %an = getelementptr SCALAR, ptr %a, i64 ROWS
  %k2 = add i64 %k, 1
  %more = icmp ult i64 %k2, STEPS
  br i1 %more, label %steps, label %after
after:
  %r2 = add i64 %r, 1
  %again = icmp ult i64 %r2, %repeats
  br i1 %again, label %loop, label %done
done:
STORES
  ret void
}
"""
_PASS_TEXT = """
declare void @llvm.prefetch(ptr, i32, i32, i32)
define void @run(ptr %source, ptr %target, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i2, %loop]
CARRIED
BODY
  %i2 = add i64 %i, 64
  %more = icmp ult i64 %i2, %count
  br i1 %more, label %loop, label %done
done:
CLOSING
  ret void
}
!0 = !{i32 1}
"""


def tile_text(kind: str, lanes: int) -> str:
    """void run(operands, result, repeats): a rows x k and a k x columns panel multiplied, added up in registers."""
    rows, columns = _TILE[lanes]
    scalar = "float" if kind == "fma" else "i32"
    vector = f"<{lanes} x {scalar}>"
    cells = list(itertools.product(range(rows), range(columns)))
    inner = [f"  %c{i}_{j} = phi {vector} [%s{i}_{j}, %loop], [%n{i}_{j}, %steps]" for i, j in cells]
    for j in range(columns):
        inner += [f"  %b{j}p = getelementptr {vector}, ptr %b, i64 {j}",
                  f"  %b{j} = load {vector}, ptr %b{j}p, align 64"]  # fmt: skip
    for i in range(rows):
        inner += [f"  %a{i}p = getelementptr {scalar}, ptr %a, i64 {i}", f"  %a{i}s = load {scalar}, ptr %a{i}p",
                  f"  %a{i}i = insertelement {vector} poison, {scalar} %a{i}s, i32 0",
                  f"  %a{i} = shufflevector {vector} %a{i}i, {vector} poison, <{lanes} x i32> zeroinitializer",
                  ]  # fmt: skip
    if kind == "fma":
        name, order = f"@llvm.fma.v{lanes}f32", "{v} %a{i}, {v} %b{j}, {v} %c{i}_{j}"
    else:
        name, order = "@llvm.x86.avx512.vpdpbusd.512", "{v} %c{i}_{j}, {v} %a{i}, {v} %b{j}"
    inner += [f"  %n{i}_{j} = call {vector} {name}({order.format(v=vector, i=i, j=j)})" for i, j in cells]
    words = {
        "DECLARE": f"declare {vector} {name}({vector}, {vector}, {vector})",
        "OUTER": "\n".join(f"  %s{i}_{j} = phi {vector} [zeroinitializer, %entry], [%n{i}_{j}, %after]"
                           for i, j in cells),
        "INNER": "\n".join(inner),
        "STORES": "\n".join(f"  %o{i}_{j} = getelementptr {vector}, ptr %result, i64 {i * columns + j}\n"
                            f"  store {vector} %n{i}_{j}, ptr %o{i}_{j}, align 64" for i, j in cells),
        "VECTOR": vector, "SCALAR": scalar, "PANEL": str(_K * columns), "COLUMNS": str(columns), "ROWS": str(rows),
        "STEPS": str(_K),
    }  # fmt: skip
    return _filled(_TILE_TEXT, words)


def pass_text(kind: str, lanes: int, streams: int, ahead: int, is_streaming: bool) -> str:
    """void run(source, target, count): read `count` bytes, or copy them, in so many streams side by side."""
    vector = f"<{lanes} x i32>"
    width = lanes * 4
    parts = [(s, v) for s in range(streams) for v in range(_LINE // width)]
    names = [f"{s}_{v}" for s, v in parts]
    body = []
    for s, v in parts:
        n = f"{s}_{v}"
        body += [f"  %o{n} = add i64 %i, OFFSET{s}", f"  %q{n} = add i64 %o{n}, {v * width}",
                 f"  %p{n} = getelementptr i8, ptr %source, i64 %q{n}",
                 f"  %x{n} = load {vector}, ptr %p{n}, align 64"]  # fmt: skip
        if ahead and not v:
            body += [f"  %f{n} = getelementptr i8, ptr %p{n}, i64 {ahead}",
                     f"  call void @llvm.prefetch(ptr %f{n}, i32 0, i32 3, i32 1)"]  # fmt: skip
        if kind == "copy":
            hint = ", !nontemporal !0" if is_streaming else ""
            body += [f"  %t{n} = getelementptr i8, ptr %target, i64 %q{n}",
                     f"  store {vector} %x{n}, ptr %t{n}, align 64{hint}"]  # fmt: skip
        else:
            body.append(f"  %n{n} = xor {vector} %c{n}, %x{n}")
    carried = [f"  %c{n} = phi {vector} [zeroinitializer, %entry], [%n{n}, %loop]" for n in names]
    closing = [f"  %t{n} = getelementptr {vector}, ptr %target, i64 {k}\n  store {vector} %n{n}, ptr %t{n}, align 64"
               for k, n in enumerate(names)]  # fmt: skip
    is_read = kind == "read"
    words = {"CARRIED": "\n".join(carried) if is_read else "", "BODY": "\n".join(body),
             "CLOSING": "\n".join(closing) if is_read else ""}  # fmt: skip
    text = _filled(_PASS_TEXT, words)
    heads = [f"  %step{s} = mul i64 %count, {s}" for s in range(streams)]
    text = text.replace("entry:\n", "entry:\n" + "\n".join(heads) + "\n")
    for s in range(streams):
        text = text.replace(f"OFFSET{s}", f"%step{s}")
    return text


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


@functools.cache
def built(text: str) -> Callable[[int, int, int], None]:
    """The loop as a call of (source, target, count) that lets go of Python's lock."""
    from kernmill.runtime import host, llvm_codegen, loader

    module = loader.load_object(llvm_codegen.compile_ir(text, host.this_host()), ["run"])
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(module.symbols["run"])
    call.kept = module  # type: ignore[attr-defined]
    return call


class Place(NamedTuple):
    """Memory that is read; its address is aligned to a line."""

    address: int
    size_bytes: int


class Probe:
    """One loop on so many threads, each with operands or a share of the buffers of its own."""

    def __init__(self, kind: str, text: str, threads: int, place: Place | None = None) -> None:
        self.run, self.threads = built(text), threads
        host_lanes = lanes()
        if kind in ("read", "copy"):
            step = _LINE * text.count("mul i64 %count")  # a line of each stream
            share = (place.size_bytes if place else _BUFFER_BYTES) // threads // step * step
            self.count = share * _LINE // step
            written = share if kind == "copy" else _SUMS
            sources = [place.address + n * share if place else memory("source", n, share) for n in range(threads)]
            self.given = [(source, memory("target", n, written)) for n, source in enumerate(sources)]
            self.work = threads * share * (2.0 if kind == "copy" else 1.0)
        else:
            rows, columns = _TILE[host_lanes]
            per_repeat = 2.0 * rows * columns * host_lanes * _K * (4 if kind == "vnni" else 1)
            self.count = 20000
            self.given = [(memory("operands", n, 1 << 16), memory("result", n, 1 << 16)) for n in range(threads)]
            self.work = threads * per_repeat * self.count

        self.passes = 1 if threads == 1 else _PASSES
        self.work *= self.passes

    def turn(self, source: int, target: int) -> None:
        """The share of one thread."""
        for _ in range(self.passes):
            self.run(source, target, self.count)

    def __call__(self) -> None:
        """The loop on every thread, together."""
        others = [threading.Thread(target=self.turn, args=given) for given in self.given[1:]]
        for thread in others:
            thread.start()
        self.turn(*self.given[0])
        for thread in others:
            thread.join()


def lanes() -> int:
    """float32 lanes of the host's widest vectors."""
    from kernmill.runtime import host

    here = host.this_host()
    return 16 if here.has("avx512f") else 8 if here.has("avx2") else 4


def texts(kind: str) -> list[str]:
    """The loops to try. Raises NotImplementedError where the host lacks the instructions."""
    from kernmill.runtime import host

    here = host.this_host()
    if kind == "fma":
        return [tile_text("fma", lanes())]
    if kind == "vnni":
        if not (here.has("avx512vnni") and here.has("avx512f")):
            raise NotImplementedError("this CPU has no AVX-512 VNNI")
        return [tile_text("vnni", 16)]
    tries = [(streams, ahead) for streams in STREAMS for ahead in (0, 1024)]
    kinds = (False, True) if kind == "copy" else (False,)
    return [pass_text(kind, lanes(), streams, ahead, streaming) for streams, ahead in tries for streaming in kinds]


@functools.cache
def fastest(kind: str, threads: int, place: Place | None = None) -> Probe:
    """The loop that is chosen, once a process."""
    probes = [Probe(kind, text, threads, place) for text in texts(kind)]
    if len(probes) == 1:
        return probes[0]
    return min(probes, key=lambda probe: min(timed(probe, 1) for _ in range(4)))


def ceiling_sampler(
    kind: str, work: float, sample_s: float, threads: int, place: Place | None = None
) -> tuple[Sampler | None, str]:
    """Seconds that `work` would take at the ceiling, or nothing and the reason. `place`: what is read, where that is
    somebody's memory; it has to live on."""
    try:
        probe = fastest(kind, threads, place)
    except NotImplementedError as error:
        return None, f"no ceiling: {error}"
    return call_sampler(probe, sample_s, threads, probe.work / work), ""


@functools.cache
def memory(name: str, thread: int, size_bytes: int) -> int:
    """The address of memory that stays, aligned, and written once so that it is there. `name`, `thread`: whose."""
    array = np.ones(size_bytes + _LINE, np.uint8)
    _kept.append(array)
    return int(array.ctypes.data + -array.ctypes.data % _LINE)


_kept: list[object] = []

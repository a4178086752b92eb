"""Measuring a CPU: the figures of a Machine's row that small loops show, in under a second and only on request.

A row decides schedules, and so the bits of results. It is rounded to two digits and stored under the CPU's name and
features; it changes only when somebody asks for it. Loops are timed by the thread's CPU clock. On a busy machine their
times differ, and nothing is stored. Figures that loops cannot show remain those of the family's row.
Tests: tests/runtime/cpu/test_probe.py.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle, pairwise
from typing import Any, Final

from kernmill.ir import DeviceError, Machine, SettingError

from ..programs.compile_cache import cache_key, default_cache
from .cpu_target import machine_of
from .host import Host
from .llvm_codegen import compile_ir
from .loader import load_object

__all__ = ["forget_machine", "measure_machine", "measured_machine", "row_from"]

_SAMPLES: Final = 7
_SAMPLE_NS: Final = 3_000_000.0
_STEADY: Final = 1.15  # the second quartile of times by the first: above it the machine is busy
_SOURCE: Final = 1 << 28  # bytes, far beyond all caches
_ACCUMULATORS: Final = 12
_TEXT: Final = """
define void @run(ptr %src, i64 %mask, i64 %count) {
entry:
SETUP
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
CARRIED
BODY
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
CLOSING
  ret void
}
DECLARE
"""


def measured_machine(host: Host) -> Machine | None:
    """Return the row that was measured on this CPU; None if none was, or if it is damaged."""
    entry = default_cache("machines").get(_machine_key(host))
    if entry is None:
        return None
    try:
        figures = json.loads(entry.payload)
        return row_from(machine_of(host), figures) if figures else None
    except (ValueError, TypeError, AttributeError, SettingError):
        return None


def measure_machine(host: Host) -> Machine:
    """Measure this CPU, and store its row.

    Raises:
        DeviceError: the machine is busy, so that times differ; the row in force is kept.
    """
    figures = _figures(host)
    row = row_from(machine_of(host), figures)
    default_cache("machines").put(_machine_key(host), json.dumps(figures).encode(), {"name": row.name})
    return row


def forget_machine(host: Host) -> None:
    """Use the row of this CPU's family again."""
    default_cache("machines").put(_machine_key(host), b"{}", {"name": machine_of(host).name})


def row_from(row: Machine, figures: Mapping[str, float]) -> Machine:
    """Return a family's row with measured figures: fields by name, `bytes_per_cycle` of levels by number."""
    levels = list(row.levels)
    for number, level in enumerate(levels):
        if (rate := figures.get(str(number))) is not None:
            levels[number] = level._replace(bytes_per_cycle=float(rate))
    own: dict[str, Any] = {name: float(figure) for name, figure in figures.items() if not name.isdigit()}
    return replace(row, name=f"{row.name.removesuffix(', measured')}, measured", levels=tuple(levels), **own)


def _machine_key(host: Host) -> str:
    return cache_key("machine", host.arch, host.cpu, ",".join(host.features))


def _figures(host: Host) -> dict[str, float]:
    """Measure each figure, rounded to two digits."""
    lanes = 16 if host.has("avx512f") else 8 if host.has("avx") else 4
    memory = (ctypes.c_char * (_SOURCE + 128))()
    ctypes.memset(memory, 1, _SOURCE)
    source = -(-ctypes.addressof(memory) // 64) * 64

    clock = 16.0 / _time_ns(host, _loop_text("chain", lanes), source, 0)  # sixteen dependent steps of one cycle

    def cycles(body: str, steps: float, mask: int = 0) -> float:
        return _time_ns(host, _loop_text(body, lanes), source, mask) * clock / steps

    found = {"clock_ghz": clock}
    counts = {"fma": _ACCUMULATORS, "alu": 2 * _ACCUMULATORS, "shuffle": _ACCUMULATORS, "divide": 8, "load": 8,
              "store": 8}  # fmt: skip
    for name, count in counts.items():
        found[name] = 1 / cycles(name, count, 8191 if name in ("load", "store") else 0)
    found["latency"] = cycles("latency", 8)
    found["lane_cycles"] = cycles("lanes", lanes, 8191)
    for number, room in enumerate((host.l2 // 2, host.l3 // 2, _SOURCE)):  # of the next cache, or far beyond the last
        mask = (1 << (min(room, _SOURCE).bit_length() - 1)) - 1
        found[str(number)] = 8 * lanes * 4 / cycles("load", 1, mask)
    return {name: float(f"{figure:.1e}") for name, figure in found.items()}


def _time_ns(host: Host, text: str, source: int, mask: int) -> float:
    """The least time of one iteration.

    Raises:
        DeviceError: times differ too much.
    """
    module = load_object(compile_ir(text, host), ["run"])
    run: Callable[..., Any] = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        module.symbols["run"]
    )

    def timed(count: int) -> float:
        begun = time.thread_time_ns()
        run(source, mask, count)
        return (time.thread_time_ns() - begun) / count

    count = 1000
    while (once := timed(count)) * count < _SAMPLE_NS / 8:
        count *= 4
    count = max(1000, int(_SAMPLE_NS / max(once, 1e-3)))
    times = sorted(timed(count) for _ in range(_SAMPLES))
    if times[_SAMPLES // 2] > _STEADY * times[1]:
        raise DeviceError(
            f"info --measure: times of one loop differ by {times[_SAMPLES // 2] / times[1] - 1:.0%}, so the machine is "
            "busy. The row in force is kept. Stop other programs and measure again."
        )
    return times[0]


def _loop_text(kind: str, lanes: int) -> str:
    """A loop of one kind, with as many independent values as it needs."""
    floats, words = f"<{lanes} x float>", f"<{lanes} x i32>"
    many = _ACCUMULATORS
    kinds = {"fma": (many, floats), "latency": (1, floats), "divide": (8, floats), "alu": (many, words),
             "shuffle": (many, words), "load": (8, words), "store": (0, words), "lanes": (1, words),
             "chain": (1, "i64")}  # fmt: skip
    count, type_ = kinds[kind]
    body = [line for n in range(max(1, count)) for line in _instructions(kind, n, lanes, type_)]
    if kind in ("load", "store", "lanes"):
        body = ["  %at = mul i64 %i, STEP", "  %base = and i64 %at, %mask", *body]
    size = 8 * lanes * 4
    words_of = {
        "SETUP": f"  %y = load {type_}, ptr %src, align 64",
        "CARRIED": "\n".join(f"  %c{n} = phi {type_} [%y, %entry], [%r{n}, %loop]" for n in range(count)),
        "BODY": "\n".join(body),
        "CLOSING": "\n".join(f"  store volatile {type_} %r{n}, ptr %src, align 64" for n in range(count)),
        "DECLARE": f"declare {floats} @llvm.fma.v{lanes}f32({floats}, {floats}, {floats})",
        "STEP": str(size),
    }
    text = _TEXT
    for word, value in words_of.items():
        text = text.replace(word, value)
    return text


def _instructions(kind: str, n: int, lanes: int, type_: str) -> list[str]:
    """The instructions of value `n` of a loop: from %c to %r."""
    if kind in ("fma", "latency"):
        steps = 8 if kind == "latency" else 1
        names = [f"%c{n}", *[f"%t{n}_{k}" for k in range(steps - 1)], f"%r{n}"]
        call = f"call {type_} @llvm.fma.v{lanes}f32({type_} VALUE, {type_} %y, {type_} %y)"
        return [f"  {to} = " + call.replace("VALUE", at) for at, to in pairwise(names)]
    if kind in ("chain", "alu"):
        names = [f"%c{n}", *[f"%t{n}_{k}" for k in range(15 if kind == "chain" else 1)], f"%r{n}"]
        return [f"  {to} = {verb} {type_} {at}, %y" for (at, to), verb in zip(pairwise(names), cycle(("add", "xor")))]
    if kind == "divide":
        return [f"  %r{n} = fdiv {type_} %y, %c{n}"]
    if kind == "shuffle":
        order = ", ".join(f"i32 {(5 * k + 1) % (2 * lanes)}" for k in range(lanes))
        return [f"  %r{n} = shufflevector {type_} %c{n}, {type_} %y, <{lanes} x i32> <{order}>"]
    if kind == "load":
        return [f"  %o{n} = add i64 %base, {n * lanes * 4}", f"  %p{n} = getelementptr i8, ptr %src, i64 %o{n}",
                f"  %v{n} = load {type_}, ptr %p{n}, align 16", f"  %r{n} = xor {type_} %c{n}, %v{n}"]  # fmt: skip
    if kind == "store":
        lines = list[str]()
        for k in range(8):
            lines += [f"  %o{k} = add i64 %base, {k * lanes * 4}", f"  %p{k} = getelementptr i8, ptr %src, i64 %o{k}",
                      f"  store {type_} %y, ptr %p{k}, align 16"]  # fmt: skip
        return lines
    lines, vector = list[str](), "%y"
    for k in range(lanes):
        lines += [f"  %o{k} = add i64 %base, {k * 68}", f"  %p{k} = getelementptr i8, ptr %src, i64 %o{k}",
                  f"  %v{k} = load i32, ptr %p{k}, align 4",
                  f"  %w{k} = insertelement {type_} {vector}, i32 %v{k}, i32 {k}"]  # fmt: skip
        vector = f"%w{k}"
    return [*lines, f"  %r{n} = xor {type_} %c{n}, {vector}"]

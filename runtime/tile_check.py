"""What of the CPU's matrix unit can be used: what it has, what the system allows, and what gave right results.

Before kernels rely on it, each of its products is tried once for a machine, in a process that is forked for it: an
instruction that is announced and not there would end this one. The answer is kept in the kernel cache.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from math import prod
from typing import Final

from kernmill.ir import AxisKind, DType, Ops, Target, Unit, UOp, bits_of, const, dtypes, make_range, setting
from kernmill.renderers import AMX_UNITS, LLVMRenderer

from .compile_cache import cache_key, default_cache
from .host import Host, amx_refusal
from .llvm_codegen import compile_ir, llvm_version
from .loader import load_object

__all__ = ["matrix_unit", "trial", "unit_trial"]

_STEPS: Final = 2  # blocks of terms that are added up


def matrix_unit(host: Host) -> tuple[tuple[Unit, ...], str]:
    """What can be multiplied, and a sentence about it for `kernmill info`; with TARGET=amx functions stand for all."""
    is_stood_for = setting("TARGET") == "amx"
    units = tuple(unit for name, several in AMX_UNITS.items() if is_stood_for or host.has(name) for unit in several)
    if is_stood_for:
        return units, "matrix unit: functions stand for one (TARGET=amx)"
    if not units:
        return (), "" if setting("TARGET") else amx_refusal()
    fault = _fault(units, host)
    names = ", ".join(dict.fromkeys(unit.a.name for unit in units))
    return ((), f"matrix unit: not used, {fault}") if fault else (units, f"matrix unit: {names}")


@functools.cache
def _fault(units: tuple[Unit, ...], host: Host) -> str:
    """Why they cannot be trusted; empty if they can."""
    key = cache_key("matrix unit", llvm_version(), host.cpu, ",".join(host.features), " ".join(os.uname()))
    entry = default_cache().get(key)
    if entry is None:
        fault = _outcome([trial(unit, host, has_tiles=True) for unit in units])
        default_cache().put(key, fault.encode(), {"name": "what is wrong with the matrix unit", "fault": fault})
        return fault
    return entry.payload.decode()


def _outcome(trials: Sequence[Callable[[], bool]]) -> str:
    """What is wrong, tried in a forked process, which does nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns where there are threads
        process = os.fork()
    if not process:
        wrong = 2
        faulthandler.disable()  # ending by a signal is an answer here
        try:
            wrong = int(not all(right() for right in trials))
        finally:
            os._exit(wrong)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return ("", "its products are wrong")[code] if 0 <= code < 2 else f"a process that tried it ended with {code}"


def trial(unit: Unit, host: Host, *, has_tiles: bool) -> Callable[[], bool]:
    """What says whether a small kernel gives the right sums; without `has_tiles` functions stand for the unit."""
    uops, memory, right = unit_trial(unit)
    text = LLVMRenderer(Target("check"), has_tiles=has_tiles).render("check", uops)
    module = load_object(compile_ir(text, host), ["check"])

    def is_right() -> bool:
        slots = (ctypes.c_uint64 * 3)(*map(ctypes.addressof, memory))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(module.symbols["check"])(slots, 0, 1)
        return memory[2].raw == right

    return is_right


def unit_trial(unit: Unit) -> tuple[list[UOp], list[ctypes.Array[ctypes.c_char]], bytes]:
    """A small kernel with full-range operands, the memory of its three buffers, and what the last one must hold."""
    sizes = (unit.a, unit.m * unit.k), (unit.b, unit.k * unit.n)
    blocks = [[[_value(n + step, dtype) for n in range(size)] for step in range(_STEPS)] for dtype, size in sizes]
    wanted: list[float] = [0] * (unit.m * unit.n)
    for a, b in zip(*blocks, strict=True):
        assert Ops.TILE.py is not None
        wanted = Ops.TILE.py(a, b, wanted, unit.m, unit.n, unit.k, unit.group)
    memory = [_memory([*chain(*block)], dtype) for block, (dtype, _) in zip(blocks, sizes, strict=True)]
    right, result = (_memory(values, unit.c) for values in (wanted, [0] * len(wanted)))
    return _kernel(unit), [*memory, result], right.raw


def _kernel(unit: Unit) -> list[UOp]:
    """Blocks of a and b multiplied one after the other, the sums stored."""
    step = make_range("k", const(dtypes.int64, _STEPS), AxisKind.REDUCE)
    loads: list[UOp] = []
    for slot, dtype, size in ((0, unit.a, unit.m * unit.k), (1, unit.b, unit.k * unit.n)):
        memory = UOp(Ops.PARAM, dtype, (), (slot, _STEPS * size))
        place = UOp(Ops.INDEX, dtype.vec(size), (memory, step * size))
        loads.append(UOp(Ops.LOAD, place.dtype, (place,)))
    kind = unit.c.vec(unit.m * unit.n)
    register = UOp(Ops.REG, kind, (const(kind, 0),), "sum")
    so_far = UOp(Ops.CARRY, kind, (register, step))
    total = UOp(Ops.TILE, kind, (*loads, so_far), (unit.m, unit.n, unit.k, unit.group))
    done = UOp(Ops.AFTER, kind, (register, UOp(Ops.SET, dtypes.void, (register, total)), step), 1)
    memory = UOp(Ops.PARAM, unit.c, (), (2, kind.lanes))
    place = UOp(Ops.INDEX, kind, (memory, const(dtypes.int64, 0)))
    uops = UOp(Ops.STORE, dtypes.void, (place, done)).toposort()
    uops.insert(uops.index(done), UOp(Ops.END, dtypes.void, (step,)))
    if not unit.items:
        return uops
    count = const(dtypes.int64, prod(count for count, _ in unit.items))
    item = make_range("item", count, AxisKind.LOCAL)
    return [count, item, *(u for u in uops if u is not count), UOp(Ops.END, dtypes.void, (item,))]


def _value(number: int, dtype: DType) -> float:
    """Of all values of 8 bits, which each of the types holds exactly, as it does their sums."""
    value = number * 37 % 256
    value = value if dtype is dtypes.uint8 else value - 128
    return float(value) if dtype.is_float else value


def _memory(values: Sequence[float], dtype: DType) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(b"".join(bits_of(dtype, v).to_bytes(dtype.size_bytes, "little") for v in values))

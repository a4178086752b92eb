"""What of the CPU's matrix unit can be used: what it has, what the system allows, and what gave right results.

Before kernels rely on it, each of its products is tried once for a machine, in a process of its own: an instruction
that is announced and not there would end this one. The answer is kept in the kernel cache.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Final

from kernmill.ir import AxisKind, DType, Ops, Target, Unit, UOp, bits_of, const, dtypes, make_range, setting
from kernmill.renderers import AMX_UNITS, LLVMRenderer

from .compile_cache import cache_key, default_cache
from .host import Host, amx_refusal, this_host
from .llvm_codegen import compile_ir, llvm_version
from .loader import load_object

__all__ = ["main", "matrix_unit", "try_unit"]

_CHILD: Final = "from kernmill.runtime.tile_check import main; main()"
_WAIT_S: Final = 60
_STEPS: Final = 3  # blocks of terms that are added up


def matrix_unit(host: Host) -> tuple[tuple[Unit, ...], str]:
    """What can be multiplied, and a sentence about it for `kernmill info`; with TARGET=amx functions stand for all."""
    if setting("TARGET") == "amx":
        every = tuple(unit for several in AMX_UNITS.values() for unit in several)
        return every, "matrix unit: functions stand for one (TARGET=amx)"
    units = tuple(unit for feature, several in AMX_UNITS.items() if host.has(feature) for unit in several)
    if not units:
        return (), amx_refusal() if not setting("TARGET") else ""
    fault = _fault(host)
    if fault:
        return (), f"matrix unit: not used, {fault}"
    return units, f"matrix unit: {', '.join(dict.fromkeys(unit.a.name for unit in units))}"


@functools.cache
def _fault(host: Host) -> str:
    """Why the unit cannot be trusted; empty if it can."""
    key = cache_key("matrix unit", llvm_version(), host.cpu, ",".join(host.features), " ".join(os.uname()))
    cache = default_cache()
    entry = cache.get(key)
    if entry is not None:
        return entry.payload.decode()
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD], env={**os.environ, "TARGET": "", "PYTHONPATH": path}, capture_output=True,
            text=True, timeout=_WAIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"trying it in a process of its own failed: {error}"  # not kept: next time it may work
    fault = str(json.loads(done.stdout)) if done.returncode == 0 else f"trying it ended a process ({done.returncode})"
    cache.put(key, fault.encode(), {"what": "whether the matrix unit gives right results"})
    return fault


def main() -> None:
    """In the process of its own: write what is wrong, as JSON, to stdout."""
    host = this_host()
    units = [unit for feature, several in AMX_UNITS.items() if host.has(feature) for unit in several]
    wrong = [f"{u.a.name} by {u.b.name}" for u in units if not try_unit(u, host, has_tiles=True)]
    print(json.dumps(f"products are wrong: {', '.join(wrong)}" if wrong else ""))


def try_unit(unit: Unit, host: Host, *, has_tiles: bool) -> bool:
    """Whether a small kernel gives the right sums; without `has_tiles` functions stand for the unit."""
    text = LLVMRenderer(Target("check"), has_tiles=has_tiles).render("check", _kernel(unit))
    module = load_object(compile_ir(text, host), ["check"])
    sizes = (unit.a, unit.m * unit.k), (unit.b, unit.k * unit.n)
    blocks = [[[_value(n + step, dtype) for n in range(size)] for step in range(_STEPS)] for dtype, size in sizes]
    wanted: list[float] = [0] * (unit.m * unit.n)
    for a, b in zip(*blocks, strict=True):
        assert Ops.TILE.py is not None
        wanted = Ops.TILE.py(a, b, wanted, unit.m, unit.n, unit.k, unit.group)
    given = [_memory([*chain(*block)], dtype) for block, (dtype, _) in zip(blocks, sizes, strict=True)]
    right = _memory(wanted, unit.c)
    result = ctypes.create_string_buffer(len(right) - 1)
    slots = (ctypes.c_uint64 * 3)(*(ctypes.addressof(memory) for memory in (*given, result)))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(module.symbols["check"])(slots, 0, 1)
    return result.raw == right.raw[:-1]


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
    return uops


def _value(number: int, dtype: DType) -> float:
    """Of all values of 8 bits, which each of the types holds exactly, as it does their sums."""
    value = number * 37 % 256
    value = value if dtype is dtypes.uint8 else value - 128
    return float(value) if dtype.is_float else value


def _memory(values: Sequence[float], dtype: DType) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(b"".join(bits_of(dtype, v).to_bytes(dtype.size_bytes, "little") for v in values))

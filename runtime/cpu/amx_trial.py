"""The usable products of the CPU's matrix unit: what it has, what the system allows, and what passed a self-test.

Before kernels use it, each of its products is tested once per machine, in a forked process: an instruction that is
announced and missing would end this one. The result is stored in the kernel cache.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import warnings
from collections.abc import Callable, Sequence

from kernmill.ir import Target, Unit, fork_helper, setting
from kernmill.renderers import AMX_UNITS, LLVMRenderer

from ..programs.compile_cache import cache_key, default_cache
from ..programs.matrix_unit_trial import matrix_unit_trial
from .host import Host, amx_refusal
from .llvm_codegen import compile_ir, llvm_version
from .loader import load_object

__all__ = ["matrix_unit", "trial"]


_WRONG, _ENDED = "its products are wrong", "a process that tried it ended with "


def matrix_unit(host: Host) -> tuple[tuple[Unit, ...], str]:
    """Return the usable matrix units, and a message for `kernmill info`; with TARGET=amx functions emulate all."""
    is_stood_for = setting("TARGET") == "amx"
    units = tuple(unit for name, several in AMX_UNITS.items() if is_stood_for or host.has(name) for unit in several)
    if is_stood_for:
        return units, "matrix unit: emulated by functions (TARGET=amx)"
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
    stored = None if entry is None else entry.payload.decode(errors="replace")
    if entry is None or stored is None or entry.header.get("fault") != stored or not _is_answer(stored):
        fault = _outcome([trial(unit, host, has_tiles=True) for unit in units])
        default_cache().put(key, fault.encode(), {"name": "what is wrong with the matrix unit", "fault": fault})
        return fault
    return stored


def _is_answer(fault: str) -> bool:
    """True if `_outcome` could have given this."""
    return fault in ("", _WRONG) or (fault.startswith(_ENDED) and fault[len(_ENDED) :].lstrip("-").isdecimal())


def _outcome(trials: Sequence[Callable[[], bool]]) -> str:
    """Return what fails in a forked process, which does nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns where there are threads
        process = fork_helper()
    if not process:
        wrong = 2
        faulthandler.disable()  # ending by a signal is an answer here
        try:
            wrong = int(not all(right() for right in trials))
        finally:
            os._exit(wrong)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return ("", _WRONG)[code] if 0 <= code < 2 else f"{_ENDED}{code}"


def trial(unit: Unit, host: Host, *, has_tiles: bool) -> Callable[[], bool]:
    """Return a self-test: a small kernel whose sums must be right; without `has_tiles` functions emulate the unit."""
    uops, memory, right = matrix_unit_trial(unit)
    text = LLVMRenderer(Target("check", instructions="x86", emulates_units=not has_tiles)).render("check", uops)
    module = load_object(compile_ir(text, host), ["check"])

    def is_right() -> bool:
        slots = (ctypes.c_uint64 * 3)(*map(ctypes.addressof, memory))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(module.symbols["check"])(slots, 0, 1)
        return memory[2].raw == right

    return is_right

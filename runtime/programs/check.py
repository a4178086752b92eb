"""CHECK=1: every kernel also runs on PYTHON and the results are compared; compiling.py verifies the compiler's stages.

Slow by design: the reference is plain Python. The first difference stops the program and leaves a folder that
reproduces it (reproduce.py). Two orders of a sum differ by rounding. A sum of terms that cancel, a comparison or an
integer may amplify that difference. So a difference counts only if it is larger than those between runs of the
reference that round each result up or down at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from kernmill.ir import InternalError, Kernel, dtypes, np
from kernmill.renderers import rounder_name

from ..device import Call, Device, Program, get_device, read_buffer
from ..memory.buffer import Buffer
from .build import build

__all__ = ["agree", "difference", "run_checked"]

_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-9}
_ULPS = {dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7, dtypes.float32: 2.0**-23, dtypes.float64: 2.0**-52}
_RUNS, _FACTOR = 8, 8.0  # runs with random rounding; times the largest difference between them
# the program of PYTHON for each program that was checked; it is released with it
_references: WeakKeyDictionary[Program, Program] = WeakKeyDictionary()


def run_checked(device: Device, kernel: Kernel, call: Call) -> None:
    """Run a kernel on its device and, on copies of its buffers, on PYTHON; compare what they wrote.

    Raises:
        InternalError: the results differ; the message names the kernel.
    """
    if device.name.partition(":")[0] == "NULL":
        device.run([call])  # there is no result to compare
        return
    inputs = [read_buffer(device, b).copy() for b in call.buffers]
    message = difference(device, kernel, call, inputs)
    if message:
        name = f"{kernel.name} ({kernel.origin})" if kernel.origin else kernel.name
        error = InternalError(f"CHECK: {name} on {device.name} differs from PYTHON {message}. Please report it.")
        error.kernels, error.inputs = (kernel,), (inputs, call.variables)
        raise error


def difference(device: Device, kernel: Kernel, call: Call, inputs: Sequence[Any]) -> str:
    """Run a kernel on its device and on PYTHON. Return where the results differ, or "". `inputs`: by slot."""
    device.run([call])
    reference = _references.get(call.program) or _references.setdefault(
        call.program, build(get_device("PYTHON"), kernel)
    )
    slots = [kernel.buffers.index(number) for number in kernel.outputs]
    wanted = _results(reference, call, inputs, slots)
    for slot in slots:
        got, dtype = read_buffer(device, call.buffers[slot]), call.buffers[slot].dtype.name
        if not agree(got, wanted[slot], dtype) and not _is_rounding(reference, call, inputs, slot, got, wanted[slot]):
            worst = np.flatnonzero(got != wanted[slot])[:5]
            return f"at {worst.tolist()}: {got[worst]} against {wanted[slot][worst]}"
    return ""


def _results(reference: Program, call: Call, inputs: Sequence[Any], slots: Sequence[int]) -> Mapping[int, Any]:
    """Run a program of PYTHON; return the values of these slots after it."""
    copies = {slot: inputs[slot].copy() for slot in slots}
    arrays = [copies.get(slot, array) for slot, array in enumerate(inputs)]
    owners = [Buffer("PYTHON", b.dtype, b.numel, a, a.ctypes.data) for b, a in zip(call.buffers, arrays, strict=True)]
    get_device("PYTHON").run([Call(reference, tuple(owners), call.variables)])
    return copies


def _is_rounding(reference: Program, call: Call, inputs: Sequence[Any], slot: int, got: Any, wanted: Any) -> bool:
    """True if the results differ by no more than rounding may cause."""
    dtype = call.buffers[slot].dtype.name
    exact, spread = _as_numbers(wanted, dtype), np.zeros(wanted.size)
    chance = random.Random(1)
    for _ in range(_RUNS):
        found = _results(_with_random_rounding(reference, chance), call, inputs, [slot])[slot]
        spread = np.fmax(spread, np.abs(_as_numbers(found, dtype) - exact))
    difference = np.abs(_as_numbers(got, dtype) - exact)
    usual = _TOLERANCE.get(dtype, 0.0) * np.fmax(1.0, np.abs(exact))
    same = (got == wanted) | (np.isnan(_as_numbers(got, dtype)) & np.isnan(exact))
    return bool((same | (difference <= usual + _FACTOR * spread)).all())


def _with_random_rounding(reference: Program, chance: random.Random) -> Program:
    """A program of PYTHON whose results of float operations are moved by up to a unit of the last digit."""

    def moved(dtype: Any, ulp: float) -> Callable[[Any], Any]:
        exact = reference.handle.__globals__[rounder_name(dtype)]
        return lambda value: exact(value * (1.0 + ulp * (chance.random() - 0.5)))

    names = {rounder_name(dtype): moved(dtype, ulp) for dtype, ulp in _ULPS.items()}
    handle = FunctionType(reference.handle.__code__, {**reference.handle.__globals__, **names})
    return replace(reference, handle=handle)


def agree(got: Any, wanted: Any, dtype: str) -> bool:
    """True if the values are equal up to the order of sums; ints exactly. bfloat16 is given as uint16."""
    if dtype not in _TOLERANCE:
        return bool(np.array_equal(got, wanted))
    got, wanted = (_as_numbers(a, dtype) for a in (got, wanted))
    scale = max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)))
    return bool(np.allclose(got, wanted, rtol=_TOLERANCE[dtype], atol=_TOLERANCE[dtype] * scale, equal_nan=True))


def _as_numbers(values: Any, dtype: str) -> Any:
    """Values as numbers: bfloat16 comes as uint16; integers as float64."""
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values if dtype in _TOLERANCE else values.astype(np.float64)

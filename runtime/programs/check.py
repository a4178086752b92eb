"""CHECK=1: every kernel also runs on PYTHON and the results are compared; compiling.py verifies the compiler's stages.

Slow by design: the reference is plain Python. The first difference stops the program and writes what is needed to
reproduce it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from kernmill.ir import InternalError, Kernel, np, print_uops, setting

from ..device import Call, Device, Program, get_device, read_buffer
from ..memory.buffer import Buffer
from .build import build

__all__ = ["agree", "run_checked"]

_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-9}
# each lives as long as the program it is compared with
_references: WeakKeyDictionary[Program, Program] = WeakKeyDictionary()


def run_checked(device: Device, kernel: Kernel, call: Call) -> None:
    """Run a kernel on its device and, on copies of its buffers, on PYTHON; compare what they wrote.

    Raises:
        InternalError: the results differ; the message names the kernel and the file with its UOps.
    """
    if device.name.partition(":")[0] == "NULL":
        device.run([call])  # there is no result to compare
        return
    copies = [read_buffer(device, b).copy() for b in call.buffers]
    device.run([call])
    owners = tuple(
        Buffer("PYTHON", b.dtype, b.numel, a, a.ctypes.data) for b, a in zip(call.buffers, copies, strict=True)
    )
    python = get_device("PYTHON")
    reference = _references.get(call.program) or _references.setdefault(call.program, build(python, kernel))
    python.run([Call(reference, owners, call.variables)])
    for number in kernel.outputs:
        slot = kernel.buffers.index(number)
        got, wanted = read_buffer(device, call.buffers[slot]), copies[slot]
        if not agree(got, wanted, call.buffers[slot].dtype.name):
            worst = np.flatnonzero(got != wanted)[:5]
            raise InternalError(
                f"CHECK: {kernel.name} on {device.name} differs from PYTHON at {worst.tolist()}: {got[worst]} against "
                f"{wanted[worst]}. Its UOps are in {_reproducer(kernel)}. Please report it."
            )


def agree(got: Any, wanted: Any, dtype: str) -> bool:
    """Return True if equal up to the order of sums; ints exactly. bfloat16 comes as uint16."""
    if dtype == "bfloat16":
        got, wanted = ((a.astype(np.uint32) << 16).view(np.float32) for a in (got, wanted))
    if dtype not in _TOLERANCE:
        return bool(np.array_equal(got, wanted))
    scale = max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)))
    return bool(np.allclose(got, wanted, rtol=_TOLERANCE[dtype], atol=_TOLERANCE[dtype] * scale, equal_nan=True))


def _reproducer(kernel: Kernel) -> Path:
    folder = Path(str(setting("DUMP")) or tempfile.mkdtemp(prefix="kernmill-check-"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"mismatch_{kernel.ast.key.hex()[:12]}.uops"
    path.write_text(print_uops(kernel.ast))
    return path

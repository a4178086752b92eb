"""AMD's GPUs: what LLVM must know of one, and what generated code may use. No device runs such code: it is compiled and
read (bench/code.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kernmill.ir import MACHINES, DeviceError, Level, Target
from kernmill.renderers import AMD_UNITS

from .cpu.host import Host
from .grid_target import grid_target

__all__ = ["AMD_GPUS", "amd_host", "amd_target"]

AMD_GPUS: Final = ("gfx1100", "gfx1101", "gfx1102", "gfx1151")  # RDNA 3
_LOCAL_BYTES: Final = 64 << 10
# AMD's data sheet of the RX 7900 XTX; what it has not is the H100's
_RDNA3: Final = replace(
    MACHINES["gpu"], name="rdna3", clock_ghz=2.3, matrix=256.0, units=96,  # 123 TFLOP/s of the matrix unit
    levels=(Level("L2", 32 << 10, 2000.0, 0.01), Level("memory", 6 << 20, 420.0, 0.02)),  # 960 GB/s
)  # fmt: skip


def amd_host(name: str) -> Host:
    """LLVM's name and features.

    Raises:
        DeviceError: the GPU is unknown.
    """
    if name not in AMD_GPUS:
        raise DeviceError(f"AMD's {name} is not known. Known: {', '.join(AMD_GPUS)}.")
    return Host("amdgcn", name, ("+wavefrontsize32",), 32 << 10, 6 << 20, 0, "amdgcn-amd-amdhsa")


def amd_target(name: str) -> Target:
    """A group of work-items has 64 KiB of shared memory."""
    return grid_target(f"amd-{name}", "amdgcn", _LOCAL_BYTES, _RDNA3, AMD_UNITS)

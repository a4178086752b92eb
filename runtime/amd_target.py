"""AMD's GPUs: what LLVM must know of one, and what generated code may use. No device runs such code: it is compiled and
read (bench/code.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kernmill.ir import MACHINES, DeviceError, Level, Target, dtypes
from kernmill.renderers import LLVM_OPS

from .cpu.host import Host

__all__ = ["AMD_GPUS", "amd_host", "amd_target"]

AMD_GPUS: Final = ("gfx1100", "gfx1101", "gfx1102", "gfx1151")  # RDNA 3
_GROUP: Final = 256  # work-items; larger groups leave too few registers for each
_LOCAL_BYTES: Final = 64 << 10
_DOTS: Final = frozenset((a, b) for a in (dtypes.int8, dtypes.uint8) for b in (dtypes.int8, dtypes.uint8))
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
    """Work-groups with shared memory, and vectors of 16 bytes, which are one access each."""
    return Target(
        name=f"amd-{name}-{_GROUP}-{_LOCAL_BYTES >> 10}",
        vector_bytes=16,
        most_lanes=16,
        vector_registers=32,
        instructions="amdgcn",
        ops=LLVM_OPS,
        compute_dtypes=frozenset(dtypes.data) - {dtypes.bfloat16, dtypes.float16},
        dots=_DOTS,
        least_dot_lanes=1,
        group_items=_GROUP,
        local_bytes=_LOCAL_BYTES,
        has_masks=True,
        l2_bytes=1 << 20,
        machine=_RDNA3,
    )

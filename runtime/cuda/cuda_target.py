"""NVIDIA's GPUs: what LLVM must know of a generation, and what generated code may use."""

from __future__ import annotations

from typing import Final

from kernmill.ir import MACHINES, Target, dtypes
from kernmill.renderers import LLVM_OPS

from ..cpu.host import Host

__all__ = ["cuda_host", "cuda_target"]

_TRIPLE: Final = "nvptx64-nvidia-cuda"
_GROUP: Final = 256  # work-items; larger groups leave too few registers for each
_PTX: Final = ((100, "ptx86"), (89, "ptx78"), (80, "ptx70"), (0, "ptx63"))  # the language's version, by generation
_DOTS: Final = frozenset((a, b) for a in (dtypes.int8, dtypes.uint8) for b in (dtypes.int8, dtypes.uint8))
_KNOWN: Final = (60, 70, 75, 80, 86, 89, 90, 100)  # that LLVM knows; code for one runs on all later ones


def cuda_host(generation: int) -> Host:
    """LLVM's name and features; 90 is a Hopper."""
    known = max(number for number in _KNOWN if number <= max(generation, _KNOWN[0]))
    version = next(name for least, name in _PTX if known >= least)
    return Host("nvptx64", f"sm_{known}", (f"+{version}",), 128 << 10, 4 << 20, 0, _TRIPLE)


def cuda_target(generation: int, local_bytes: int = 48 << 10) -> Target:
    """Work-groups with shared memory, and vectors of 16 bytes, which are one access each."""
    known = cuda_host(generation).cpu
    return Target(
        name=f"cuda-{known}-{_GROUP}-{local_bytes >> 10}",
        vector_bytes=16,
        most_lanes=16,
        vector_registers=32,
        instructions="nvptx",
        ops=LLVM_OPS,
        compute_dtypes=frozenset(dtypes.data) - {dtypes.bfloat16, dtypes.float16},
        dots=_DOTS,
        least_dot_lanes=1,
        group_items=_GROUP,
        local_bytes=local_bytes,
        has_masks=True,
        l2_bytes=1 << 20,
        machine=MACHINES["gpu"],
    )

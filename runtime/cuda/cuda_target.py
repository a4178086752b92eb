"""NVIDIA's GPUs: what LLVM must know of a generation, and what generated code may use."""

from __future__ import annotations

from typing import Final

from kernmill.ir import MACHINES, Target
from kernmill.renderers import MMA_BYTE_UNITS, MMA_UNITS

from ..cpu.host import Host
from ..grid_target import grid_target

__all__ = ["cuda_host", "cuda_target"]

_TRIPLE: Final = "nvptx64-nvidia-cuda"
_PTX: Final = ((100, "ptx86"), (89, "ptx78"), (80, "ptx70"), (0, "ptx63"))  # the language's version, by generation
_KNOWN: Final = (60, 70, 75, 80, 86, 89, 90, 100)  # that LLVM knows; code for one runs on all later ones

_AMPERE: Final = 80  # the first whose matrix unit has these steps


def cuda_host(generation: int) -> Host:
    """LLVM's name and features; 90 is a Hopper."""
    known = max(number for number in _KNOWN if number <= max(generation, _KNOWN[0]))
    version = next(name for least, name in _PTX if known >= least)
    return Host("nvptx64", f"sm_{known}", (f"+{version}",), 128 << 10, 4 << 20, 0, _TRIPLE)


def cuda_target(generation: int, local_bytes: int = 48 << 10) -> Target:
    """A group of work-items has `local_bytes` of shared memory."""
    units = (*MMA_UNITS, *MMA_BYTE_UNITS) if generation >= _AMPERE else ()
    return grid_target(f"cuda-{cuda_host(generation).cpu}", "nvptx", local_bytes, MACHINES["gpu"], units)

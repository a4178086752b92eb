"""What code for a GPU of work-groups may use, of either maker (cuda/cuda_target.py, amd_target.py)."""

from __future__ import annotations

from typing import Final

from kernmill.ir import Machine, Target, Unit, dtypes
from kernmill.renderers import LLVM_OPS

__all__ = ["grid_target"]

_GROUP: Final = 256  # work-items; larger groups leave too few registers for each
_DOTS: Final = frozenset((a, b) for a in (dtypes.int8, dtypes.uint8) for b in (dtypes.int8, dtypes.uint8))


def grid_target(
    name: str, instructions: str, local_bytes: int, machine: Machine, units: tuple[Unit, ...] = ()
) -> Target:
    """Work-groups with shared memory, and vectors of 16 bytes, which are one access each."""
    return Target(
        name=f"{name}-{_GROUP}-{local_bytes >> 10}",
        vector_bytes=16,
        most_lanes=16,
        vector_registers=32,
        instructions=instructions,
        ops=LLVM_OPS,
        compute_dtypes=frozenset(dtypes.data) - {dtypes.bfloat16, dtypes.float16},
        dots=_DOTS,
        least_dot_lanes=1,
        group_items=_GROUP,
        local_bytes=local_bytes,
        units=units,
        has_masks=True,
        l2_bytes=1 << 20,
        machine=machine,
    )

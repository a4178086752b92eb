"""A graph that is not known yet: its kernels, and where in memory their buffers lie."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.compiler import make_schedule, plan_memory
from kernmill.ir import MemoryPlan, Schedule, UOp, no_collection

__all__ = ["planned"]


@no_collection()
def planned(
    roots: Sequence[UOp], devices: Sequence[str], in_place: frozenset[int], default: str
) -> tuple[Schedule, MemoryPlan]:
    """As `make_schedule`, with the places of intermediates."""
    schedule = make_schedule(roots, devices, in_place, default)
    return schedule, plan_memory(schedule)

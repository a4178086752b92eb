"""A graph that is not known yet: its kernels, and where in memory their buffers lie."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.compiler import plan_kernels, plan_memory
from kernmill.ir import GraphPlan, MemoryPlan, UOp, no_collection

from .device import get_device

__all__ = ["planned"]


@no_collection()
def planned(
    roots: Sequence[UOp], devices: Sequence[str], in_place: frozenset[int], default: str
) -> tuple[GraphPlan, MemoryPlan]:
    """As `plan_kernels`, with the places of intermediates."""
    plan = plan_kernels(roots, devices, in_place, default)
    names = {buffer.device for buffer in plan.buffers}
    return plan, plan_memory(plan, {name: get_device(name).limits.alignment for name in names})

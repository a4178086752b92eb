"""A copy of an input serves later runs too, where nothing writes the input or the copy.

When: after kernels are merged. Why there: it is final which kernel writes what. Why at all: a weight that two devices
read is copied once, not at each call. The runtime copies again when somebody writes to the input. Tests:
tests/compiler/graph/test_keep_copies.py.
"""

from __future__ import annotations

from dataclasses import replace

from kernmill.ir import Copy, GraphPlan, Kernel

__all__ = ["keep_copies"]


def keep_copies(plan: GraphPlan) -> GraphPlan:
    """Return the plan, with `is_kept` of the buffers that such copies write."""
    buffers = [*plan.buffers]
    written = {number for item in plan.items if isinstance(item, Kernel) for number in item.outputs}
    for item in plan.items:
        if not isinstance(item, Copy) or buffers[item.source].slot is None:
            continue
        if not buffers[item.target].is_output and written.isdisjoint(item):
            buffers[item.target] = replace(buffers[item.target], is_kept=True)
    return replace(plan, buffers=buffers)

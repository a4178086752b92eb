"""A kernel reads a slice of an intermediate as a separate buffer: one kernel serves all positions of a sequence.

When: after merge_kernels. Why there: only now are the reads of each kernel known. A step of a recurrent layer reads the
rows of its position in the result of one product for all positions. The start of these rows is in an address then, and
one kernel serves all positions. runtime/plans/views.py does this for data. Guarantees: the same values. Tests:
tests/compiler/graph/test_pass_slices.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernmill.ir import BufferPlan, GraphPlan, Kernel, Ops, UOp, rebuilt, simplify

from ..kernel.facts import routine_of

__all__ = ["pass_slices"]


def pass_slices(plan: GraphPlan, alignments: Mapping[str, int]) -> GraphPlan:
    """Return the plan, whose buffers get slices; `alignments`: bytes, of a slice, by device (else 1)."""
    buffers = [*plan.buffers]
    items = [_reading_parts(i, buffers, alignments) if isinstance(i, Kernel) else i for i in plan.items]
    return replace(plan, items=items, buffers=buffers)


def _reading_parts(kernel: Kernel, buffers: list[BufferPlan], alignments: Mapping[str, int]) -> Kernel:
    """Return the kernel, each of whose slots covers the first to the last value read; `buffers` get those slices."""
    if routine_of(kernel.ast) is not None:
        return kernel
    indices: dict[UOp, list[UOp]] = {}
    for node in kernel.ast.toposort():
        if node.op is Ops.INDEX and node.src[0].op is Ops.PARAM:
            indices.setdefault(node.src[0], []).append(node.src[1])
    numbers, parts = [*kernel.buffers], dict[UOp, tuple[int, UOp]]()
    for param, read in indices.items():
        slot, count = param.arg[:2]
        number, whole = numbers[slot], buffers[numbers[slot]]
        first, end = int(min(index.bounds[0] for index in read)), 1 + int(max(index.bounds[1] for index in read))
        is_aligned = first * whole.dtype.size_bytes % alignments.get(whole.device, 1) == 0
        if (
            is_aligned
            and whole.is_intermediate
            and number not in kernel.outputs
            and first >= 0
            and end <= count > end - first
        ):
            buffers.append(BufferPlan(whole.dtype, end - first, whole.device, part=(number, first)))
            numbers[slot], parts[param] = len(buffers) - 1, (first, param.replace(arg=(slot, end - first)))

    def moved(old: UOp, new: UOp) -> UOp:
        first, part = parts.get(old.src[0], (0, None)) if old.op is Ops.INDEX else (0, None)
        return new if part is None else new.replace(src=(part, simplify(new.src[1] - first), *new.src[2:]))

    ast = rebuilt(kernel.ast, moved) if parts else kernel.ast
    return Kernel.of(ast, tuple(numbers), kernel.outputs, kernel.device, kernel.made()[1]) if parts else kernel

"""Write-after-read hazards: assignments in place that would overwrite a value that another kernel still reads.

When: on kernels in order. Why there: only now are the readers of each old value known. If any are found, the graph is
planned again, and those assignments get separate buffers. Tests: tests/compiler/graph/test_find_hazards.py.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from kernmill.ir import Kernel, Ops, UOp, memory_of

from .bases import memory_base
from .build_kernels import BuiltKernels
from .order_kernels import OrderedKernels

__all__ = ["find_hazards"]


def find_hazards(
    results: Container[UOp], built: BuiltKernels, order: OrderedKernels, targets: Mapping[UOp, UOp]
) -> frozenset[UOp]:
    """Return the assignments of `targets` that must not write in place."""
    hazards: set[UOp] = set()
    for node, target in targets.items():
        old = memory_base(node.src[0])
        if old.op is Ops.PARAM and old in results:  # an old value that is itself a result
            hazards.add(node)
        if node in built.kernels and not _reads_only_its_place(built.kernels[node], built.buffer_of[target]):
            hazards.add(node)
        if any(reader is not node and _depends(reader, node, order.reads) for reader in order.readers_of_old(node)):
            hazards.add(node)
    if order.is_stuck and not hazards:  # a cycle of writes in place: one gets a separate buffer
        hazards = {next(node for node in targets if _depends(node, node, order.waits))}
    return frozenset(hazards)


def _depends(node: UOp, on: UOp, reads: dict[UOp, set[UOp]]) -> bool:
    seen: set[UOp] = set()
    stack = [node]
    while stack:
        new = reads.get(stack.pop(), set()) - seen
        seen |= new
        stack += new
    return on in seen


def _reads_only_its_place(kernel: Kernel, target: int) -> bool:
    own, order = kernel.ast.src[0].src[0], kernel.ast.toposort()
    slots = {slot for slot, number in enumerate(kernel.buffers) if number == target}
    inside_reduce = {n for r in order if r.op is Ops.REDUCE for n in r.toposort()}
    reads = [node for node in order if node.op is Ops.LOAD and memory_of(node.src[0]).arg[0] in slots]
    return all(read.src[0] is own and read not in inside_reduce for read in reads)

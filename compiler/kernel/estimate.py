"""The work of a kernel: floating-point operations and bytes moved, counted on its loops before they are optimized.

How long it takes is in compiler/kernel/cost.py."""

from __future__ import annotations

from typing import NamedTuple
from math import prod

from kernmill.ir import FUNCTION_COST, LINE_BYTES, KernelWork, Ops, UOp, closed_ranges, linear, memory_of

from .facts import iterations
from .linearize import loop_paths

__all__ = ["Estimate", "estimate"]

_NO_FLOPS = frozenset({Ops.CAST, Ops.BITCAST, Ops.WHERE})  # they convert and select


class Estimate(NamedTuple):
    """Units: floating-point operations, bytes."""

    flops: int
    bytes_moved: int
    work: KernelWork = KernelWork()


def estimate(ast: UOp) -> Estimate:
    """Counts for one launch; a symbolic size counts as its upper bound."""
    paths = loop_paths(ast)
    flops = weighted_ops = products = functions = sums = 0
    touched: dict[UOp, int] = {}
    for node in ast.toposort():
        times = prod(iterations(loop) for loop in max((paths[r] for r in node.ranges), key=len, default=()))
        if node.op in (Ops.LOAD, Ops.STORE):
            param = memory_of(node.src[0])
            if param.op is Ops.PARAM:
                touched[param] = max(touched.get(param, 0), min(times, int(param.arg[1])))
        elif node.op is Ops.REDUCE or (node.op.is_elementwise and not node.dtype.is_index):
            times *= prod(iterations(loop) for loop in closed_ranges(node))
            flops += times if node.dtype.is_float and node.op not in _NO_FLOPS else 0
            weighted_ops += times * node.op.cost
            functions += times * node.op.cost if node.op.cost >= FUNCTION_COST else 0
            if node.op is Ops.REDUCE:
                is_product = node.arg[0] is Ops.ADD and node.src[0].op is Ops.MUL
                products, sums = products + times * is_product, sums + times * (not is_product)
    bytes_moved = sum(count * param.dtype.size_bytes for param, count in touched.items())
    additions = weighted_ops - functions - products * (Ops.REDUCE.cost + Ops.MUL.cost) - sums * Ops.REDUCE.cost
    crossed = 0 if products or sums else sum(touched[param] * param.dtype.size_bytes for param in _crossed(ast))
    return Estimate(
        flops, bytes_moved, KernelWork(max(0.0, additions), functions, products, sums, bytes_moved, 2.0 * crossed)
    )


def _crossed(ast: UOp) -> set[UOp]:
    """The memory that is read with a stride along the axis that is written without one."""
    nodes, found = ast.toposort(), set[UOp]()
    stores = [linear(node.src[0].src[1])[0] for node in nodes if node.op is Ops.STORE and node.src[0].op is Ops.INDEX]
    fast = {loop for terms in stores for loop, step in terms.items() if step == 1}
    for node in nodes:
        if node.op is Ops.LOAD and node.src[0].op is Ops.INDEX and (param := memory_of(node.src[0])).op is Ops.PARAM:
            least = LINE_BYTES // param.dtype.size_bytes
            steps = linear(node.src[0].src[1])[0]
            if 1 in steps.values() and any(abs(steps.get(loop, 0)) >= least for loop in fast):
                found.add(param)
    return found

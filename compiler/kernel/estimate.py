"""The work of a kernel: floating-point operations and bytes moved, counted on its loops before they are optimized.

How long it takes is in compiler/kernel/cost.py."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernmill.ir import FUNCTION_COST, Ops, UOp, closed_ranges, memory_of

from .facts import iterations
from .linearize import loop_paths

__all__ = ["Estimate", "estimate"]

_NO_FLOPS = frozenset({Ops.CAST, Ops.BITCAST, Ops.WHERE})  # they convert and select


@dataclass(frozen=True, slots=True)
class Estimate:
    """Units: floating-point operations, bytes."""

    flops: int
    bytes_moved: int
    plain_ops: float = 0.0  # operations by Op.cost; without functions and products
    functions: float = 0.0  # exponentials and the like, by Op.cost
    products: float = 0.0  # multiply-adds that feed a sum


def estimate(ast: UOp) -> Estimate:
    """Counts for one launch; a symbolic size counts as its upper bound."""
    paths = loop_paths(ast)
    flops = weighted_ops = products = functions = 0
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
            if node.op is Ops.REDUCE and node.arg[0] is Ops.ADD and node.src[0].op is Ops.MUL:
                products += times
    bytes_moved = sum(count * param.dtype.size_bytes for param, count in touched.items())
    plain_ops = max(0.0, weighted_ops - functions - products * (Ops.REDUCE.cost + Ops.MUL.cost))
    return Estimate(flops, bytes_moved, plain_ops, functions, products)

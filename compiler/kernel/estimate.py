"""The work of a kernel: floating-point operations and bytes moved, counted on its loops before they are optimized.

How long it takes is in compiler/kernel/cost.py."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from kernmill.ir import LINE_BYTES, PAGE_BYTES, KernelWork, Ops, UOp, chain_cost, closed_ranges, linear, memory_of

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
    flops, additions, functions, products, long_products, sums = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    touched: dict[UOp, int] = {}
    read: dict[tuple[UOp, tuple[UOp, ...]], int] = {}  # by memory and loops
    for node in ast.toposort():
        path = max((paths[r] for r in node.ranges), key=len, default=())
        times = prod(iterations(loop) for loop in path)
        if node.op in (Ops.LOAD, Ops.STORE):
            param = memory_of(node.src[0])
            if param.op is Ops.PARAM:
                count = min(times, int(param.arg[1]))
                touched[param] = max(touched.get(param, 0), count)
                if node.op is Ops.LOAD:
                    read[param, path] = max(read.get((param, path), 0), count)
        elif node.op is Ops.REDUCE:
            times *= prod(iterations(loop) for loop in closed_ranges(node))
            flops += times if node.dtype.is_float else 0
            if node.arg[0] is Ops.ADD and node.src[0].op is Ops.MUL:
                products += times
                long_products += times if _has_long_rows(node) else 0
                additions -= times * Ops.MUL.cost  # it is part of the product
            else:
                sums += times * chain_cost(node.arg[0])
        elif node.op.is_elementwise and not node.dtype.is_index:
            flops += times if node.dtype.is_float and node.op not in _NO_FLOPS else 0
            if node.op.is_function:
                functions += times * node.op.cost
            else:
                additions += times * node.op.cost
    bytes_moved = sum(count * param.dtype.size_bytes for param, count in touched.items())
    crossed, columns, long_columns = (
        sum(touched[p] * p.dtype.size_bytes for p in params) for params in _with_strides(ast, paths)
    )
    once = {param: max(count for (other, _), count in read.items() if other is param) for param, _ in read}
    again = sum(count * param.dtype.size_bytes for (param, _), count in read.items())
    again -= sum(count * param.dtype.size_bytes for param, count in once.items())
    long_products = 0.0 if columns else long_products  # what is read once is counted with the bytes
    work = KernelWork(
        max(0.0, additions), functions, products, sums, bytes_moved, 2.0 * crossed, columns, again,
        long_products, long_columns,
    )  # fmt: skip
    return Estimate(flops, bytes_moved, work)


def _has_long_rows(reduction: UOp) -> bool:
    """True if an operand is read down the columns of long rows."""
    reduced = closed_ranges(reduction)
    for node in reduction.src[0].toposort():
        if node.op is Ops.LOAD and node.src[0].op is Ops.INDEX:
            steps, size = linear(node.src[0].src[1])[0], memory_of(node.src[0]).dtype.size_bytes
            if any(abs(steps.get(loop, 0)) * size >= PAGE_BYTES for loop in reduced):
                return True
    return False


def _with_strides(ast: UOp, paths: Mapping[UOp, tuple[UOp, ...]]) -> tuple[set[UOp], set[UOp], set[UOp]]:
    """Three kinds of memory that is read with strides. Without reductions: along the axis that is written without one.
    With reductions: read once, along the innermost axis that is reduced; and of these, what has long rows."""
    nodes, crossed, columns, long = ast.toposort(), set[UOp](), set[UOp](), set[UOp]()
    stores = [linear(node.src[0].src[1])[0] for node in nodes if node.op is Ops.STORE and node.src[0].op is Ops.INDEX]
    written = {loop for terms in stores for loop, step in terms.items() if step == 1}
    reduced = {loop for node in nodes if node.op is Ops.REDUCE for loop in closed_ranges(node)}
    for node in nodes:
        if node.op is not Ops.LOAD or node.src[0].op is not Ops.INDEX or memory_of(node.src[0]).op is not Ops.PARAM:
            continue
        param, steps = memory_of(node.src[0]), linear(node.src[0].src[1])[0]
        path = max((paths[loop] for loop in node.ranges), key=len, default=())
        strided = {loop for loop, step in steps.items() if abs(step) * param.dtype.size_bytes >= LINE_BYTES}
        if 1 not in steps.values():
            continue
        if not reduced and strided & written:
            crossed.add(param)
        elif path and path[-1] in reduced & strided and prod(map(iterations, path)) <= int(param.arg[1]):
            columns.add(param)
            if abs(steps[path[-1]]) * param.dtype.size_bytes >= PAGE_BYTES:
                long.add(param)
    return crossed, columns, long

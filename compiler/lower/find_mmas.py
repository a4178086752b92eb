"""Sums of products that fill a matrix unit become its instruction.

When: before loops are unrolled. Why there: the results of one step are a buffer that two loops fill (the action
`tensorize`), its operands are loads from packed buffers, and each is still one node. Assumes: nothing; operands in a
different layout stay a loop. Guarantees: the operands of a MMA are loads of whole blocks. Tests:
tests/compiler/lower/test_find_mmas.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from math import prod

from kernmill.ir import Ops, Target, Unit, UOp, closed_ranges, dtypes, linear, rebuilt, simplify, substitute

from ..kernel.distribute_work_items import is_local

__all__ = ["find_mmas"]


def find_mmas(ast: UOp, target: Target) -> UOp:
    """Return the kernel with MMA where sums of products allow it."""
    units = (*target.units, *target.register_units)
    if not units:
        return ast
    order = ast.toposort()

    def tiled(node: UOp, new: UOp) -> UOp:
        tiles = (tile for unit in units if (tile := _tile(new, unit)) and _is_dealt(node, unit, order))
        return next(tiles, new)

    return rebuilt(ast, tiled)


def _is_dealt(memory: UOp, unit: Unit, order: Sequence[UOp]) -> bool:
    """True if the work-items of a step fill the same buffer, and each reads only its own results of it."""
    loops = {str(node.arg[0]): node for node in order if node.op is Ops.RANGE and is_local(node)}
    last = [loops[name] for name in order[-1].arg.order if name in loops][-len(unit.items) :]
    items = zip(last, unit.items, strict=False)
    own = {loop: step for loop, (count, step) in items if loop.src[0] is loop.like(count)}
    if len(own) < len(unit.items) or not memory.ranges.isdisjoint(own):
        return False
    for node in order:
        if node.op is Ops.INDEX and node.src[0] is memory:
            terms, least = linear(node.src[1])[0], 1
            for loop, step in sorted(terms.items(), key=lambda term: term[1]):  # the loops are quotients of the index
                if loop.op is not Ops.RANGE or step < least or own.get(loop, step) != step:
                    return False
                least = step * int(loop.src[0].arg)
            if linear(node.src[1])[1] or not own.keys() <= terms.keys():
                return False
    return True


def _tile(node: UOp, unit: Unit) -> UOp | None:
    """The memory of results, filled by the unit; None where it is filled by anything else."""
    loops = closed_ranges(node)
    if node.op is not Ops.AFTER or len(loops) != 2 or node.arg != 1 or node.src[1].src[1].op is not Ops.REDUCE:
        return None
    memory, (index, total) = node.src[0], node.src[1].src
    rows, columns = loops
    count = 2 if unit.k > unit.group else 1
    for (left, right), inner in product(_operands(total, unit), permutations(closed_ranges(total), count)):
        *deep, near = inner
        sizes = {rows: unit.m, columns: unit.n, **dict.fromkeys(deep, unit.k // unit.group), near: unit.group}
        a = _block(left, {rows: unit.k, **dict.fromkeys(deep, unit.group), near: 1}, sizes)
        b = _block(right, {**dict.fromkeys(deep, unit.n * unit.group), columns: unit.group, near: 1}, sizes)
        c = _block(index, {rows: unit.n, columns: 1}, sizes)
        if a is None or b is None or c is None:
            continue
        loads = (UOp(Ops.LOAD, block.dtype, (block,)) for block in (a, b))
        value = UOp(Ops.MMA, c.dtype, (*loads, c.like(0)), (unit.m, unit.n, unit.k, unit.group))
        rest = [loop for loop in closed_ranges(total) if loop not in sizes]
        if rest:
            value = UOp(Ops.REDUCE, c.dtype, (value, *rest), total.arg)
        return UOp(Ops.AFTER, node.dtype, (memory, UOp(Ops.STORE, dtypes.void, (c, value))), 1)
    return None


def _operands(total: UOp, unit: Unit) -> list[tuple[UOp, UOp]]:
    """Return the indices of both factors, in each order that the unit supports."""
    if total.arg != (Ops.ADD, 1) or total.dtype is not unit.c or total.src[0].op is not Ops.MUL:
        return []
    loads = [s.src[0] if s.op is Ops.CAST else s for s in total.src[0].src]
    if any(u.op is not Ops.LOAD or u.src[0].gate is not None for u in loads):
        return []
    return [(a.src[0], b.src[0]) for a, b in (loads, loads[::-1]) if (a.dtype, b.dtype) == (unit.a, unit.b)]


def _block(index: UOp, steps: dict[UOp, int], sizes: dict[UOp, int]) -> UOp | None:
    """INDEX of a whole block, if these loops walk it in these steps, and the others of the unit not at all."""
    terms, _ = linear(index.src[1])
    if any(loop.src[0] is not loop.like(size) for loop, size in sizes.items()):
        return None
    if {atom: k for atom, k in terms.items() if not atom.ranges.isdisjoint(sizes)} != steps:
        return None
    first = simplify(substitute(index.src[1], dict.fromkeys(sizes, index.src[1].like(0))))
    return index.replace(dtype=index.dtype.vec(prod(sizes[loop] for loop in steps)), src=(index.src[0], first))

"""Tidy the loops of reductions: remove idle ones, reduce a row while it is written, and give reductions at different
positions separate loops.

When: once a kernel's body is built and simplified. Why there: only then is known which loops a value depends on.
Guarantees: a reduced value depends on every loop of its reduction; all nodes that close a loop are inside the same
loops, so that one pass serves them. Tests: tests/compiler/kernel/test_reduce_loops.py.
"""

from __future__ import annotations

from itertools import count

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, make_range, rebuilt, simplify, substitute

from .facts import loops_of
from .linearize import walked

__all__ = ["separate_loops", "tidy_reduce_loops"]

_IDEMPOTENT = frozenset({Ops.MAX, Ops.MIN, Ops.AND, Ops.OR})


def tidy_reduce_loops(ast: UOp) -> UOp:
    """Return the kernel with only the necessary reduce loops, shared only where possible."""
    ast = rebuilt(ast, lambda _, new: _without_idle(new) if new.op is Ops.REDUCE else new)
    ast = rebuilt(ast, lambda _, new: (_in_the_filling_pass(new) or new) if new.op is Ops.REDUCE else new)
    return separate_loops(simplify(ast))


def _in_the_filling_pass(node: UOp) -> UOp | None:
    """Return the same reduction over the loops that write a row buffer; None if other operands must wait for the
    row."""
    loops = closed_ranges(node)
    reads = [u for u in node.toposort() if u.op is Ops.LOAD and not u.ranges.isdisjoint(loops)]
    if node.arg[1] != 1 or not reads or any(u.src[0].src[0].op is not Ops.AFTER for u in reads):
        return None
    row = reads[0].src[0].src[0]
    filling = closed_ranges(row)
    if len(filling) != len(loops) or any(a.src[0] is not b.src[0] for a, b in zip(loops, filling, strict=True)):
        return None
    index, term = row.src[1].src[0], row.src[1].src[1]
    moved = dict(zip(loops, filling, strict=True))
    if row.arg != 1 or row.ranges != node.ranges:
        return None
    if any(u.src[0].src[0] is not row or substitute(u.src[0], moved).src[1:] != index.src[1:] for u in reads):
        return None
    value = substitute(substitute(node.src[0], dict.fromkeys(reads, term)), moved)
    waits = any(not set(filling).isdisjoint(closed_ranges(u)) for u in value.toposort())
    return None if waits else node.replace(src=(value, *filling))


def separate_loops(ast: UOp) -> UOp:
    """Give reductions separate loops if they share some with nodes at a different position.

    Also needed after unrolling: in one of the instances a value may have lost a loop around it.
    """
    own: dict[tuple[tuple[UOp, ...], frozenset[UOp]], dict[UOp, UOp]] = {}  # a position -> replacements of its loops
    names = set(loops_of(ast))
    owners = {loop: _position(node) for node in ast.toposort() if node.op is Ops.AFTER for loop in closed_ranges(node)}

    def apart(_: UOp, new: UOp) -> UOp:
        mine = _position(new)
        if new.op is not Ops.REDUCE or all(owners.setdefault(loop, mine) == mine for loop in closed_ranges(new)):
            return new
        if mine not in own:
            own[mine] = _own_loops(new, names)
        return substitute(new, own[mine])

    return rebuilt(ast, apart)


def _position(node: UOp) -> tuple[tuple[UOp, ...], frozenset[UOp]]:
    """Return the loops that a node closes, and those around it, without unrolled loops and lanes."""
    return tuple(walked(closed_ranges(node))), frozenset(walked(node.ranges))


def _without_idle(node: UOp) -> UOp:
    """Simplify a sum of equal terms to a product, and a maximum of equal terms to the term."""
    op, value, loops = node.arg[0], node.src[0], closed_ranges(node)
    idle = [loop for loop in loops if loop not in value.ranges and loop.src[0].is_const]
    if op is Ops.ADD and not value.dtype.is_bool:
        for loop in idle:
            value = value * loop.src[0].arg
    elif op not in _IDEMPOTENT and not (op is Ops.ADD and value.dtype.is_bool):
        return node
    rest = tuple(loop for loop in loops if loop not in idle)
    return UOp(Ops.REDUCE, node.dtype, (value, *rest), node.arg) if rest else value


def _own_loops(node: UOp, names: set[str]) -> dict[UOp, UOp]:
    table: dict[UOp, UOp] = {}
    for loop in sorted(closed_ranges(node), key=lambda loop: len(loop.toposort())):  # one's end may name another
        number = next(n for n in count() if f"k{n}" not in names)
        names.add(f"k{number}")
        table[loop] = make_range(f"k{number}", substitute(loop.src[0], table), AxisKind(loop.arg[1]))
    return table

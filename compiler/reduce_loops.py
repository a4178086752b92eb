"""Tidy the loops of reductions: idle ones go, and reductions that stand in different places get loops of their own.

When: once a kernel's body is built and simplified. Why there: only then is known which loops a value changes with.
Guarantees: a summed value changes with every loop of its sum; two reductions share a loop only if they stand in the
same loops, so that one pass over it can serve both. Tests: tests/compiler/test_reduce_loops.py.
"""

from __future__ import annotations

from itertools import count

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, make_range, simplify, substitute

__all__ = ["separate_loops", "tidy_reduce_loops"]

_IDEMPOTENT = frozenset({Ops.MAX, Ops.MIN, Ops.AND, Ops.OR})


def tidy_reduce_loops(ast: UOp) -> UOp:
    """The kernel with only those loops, and only that sharing, which make sense."""
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        src = tuple(done[s] for s in node.src)
        new = node if src == node.src else node.replace(src=src)
        done[node] = _without_idle(new) if new.op is Ops.REDUCE else new
    return separate_loops(simplify(done[ast]))


def separate_loops(ast: UOp) -> UOp:
    """Loops of their own for reductions that share some with one in another place.

    Also needed after loops were copied out: in one of the copies a value may have lost a loop around it.
    """
    done: dict[UOp, UOp] = {}
    owners: dict[UOp, tuple[tuple[UOp, ...], frozenset[UOp]]] = {}  # loop -> its sum's loops, and those around it
    own: dict[tuple[tuple[UOp, ...], frozenset[UOp]], dict[UOp, UOp]] = {}  # a place -> what its loops become
    order = ast.toposort()
    names = {str(node.arg[0]) for node in order if node.op is Ops.RANGE}
    for node in order:
        src = tuple(done[s] for s in node.src)
        new = node if src == node.src else node.replace(src=src)
        if new.op is Ops.REDUCE:
            mine = (closed_ranges(new), new.ranges)
            if any(owners.setdefault(loop, mine) != mine for loop in closed_ranges(new)):
                if mine not in own:
                    own[mine] = _own_loops(new, names)
                new = substitute(new, own[mine])
        done[node] = new
    return done[ast]


def _without_idle(node: UOp) -> UOp:
    """A sum of equal terms is a product; a maximum of equal terms is the term."""
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
    for loop in closed_ranges(node):
        number = next(n for n in count() if f"k{n}" not in names)
        names.add(f"k{number}")
        table[loop] = make_range(f"k{number}", loop.src[0], AxisKind(loop.arg[1]))
    return table

"""Loops end where their gates are false for all further iterations. Nothing is computed outside the triangle of a
causal mask, or for rows that a count in memory leaves out.

When: first after `optimize`, once loops are split. Why there: a tile ends where its last row does, so its rows must be
known. A reduction of where(g, value, neutral) needs no iteration in which g is false for all its rows; a row buffer
needs no element that is never read. A value that is read only as where(g, value, other) needs no loop while g is false:
g may compare with a loaded number. Guarantees: the same results; a loop may depend on the loops around it. Tests:
tests/compiler/kernel/test_trim_loops.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, dtypes, index_const, linear, memory_of, simplify, substitute

from .distribute_work_items import fills_shared
from .facts import combined, conjuncts, iterations, masked
from .linearize import loop_paths, walked

__all__ = ["asked", "gate_of", "greatest", "trim_loops"]

_LEAST = 16  # iterations, each of its copies one; a shorter loop is not worth a test of its end


def trim_loops(ast: UOp) -> UOp:
    """The kernel with loops that stop early."""
    ast = _without_unread(ast)
    order = ast.toposort()
    if not any(node.op is Ops.REDUCE and gate_of(node) is not None for node in order):
        return ast
    paths = loop_paths(ast)
    together = {r for node in order if fills_shared(node) for r in (*node.ranges, *closed_ranges(node))}
    limits: dict[UOp, UOp] = {}
    closers: dict[UOp, list[UOp]] = {}
    for node in order:
        for loop in closed_ranges(node):
            closers.setdefault(loop, []).append(node)
    seen: set[UOp] = set()
    for node in reversed(order):  # readers of a row buffer come before its writer
        seen.add(node)
        for loop in closed_ranges(node):
            is_fixed = loop in together or loop.arg[1] != AxisKind.REDUCE or loop.src[0].ranges
            copies = prod(iterations(r) for r in closed_ranges(node) if r.arg[1] == AxisKind.UNROLL)
            if is_fixed or iterations(loop) < 2 or iterations(loop) * copies < _LEAST:
                continue
            around = set(paths[loop][:-1])
            if loop in limits or any(later not in seen for later in closers[loop]):
                continue
            found = [
                _sum_limit(c, loop, around) if c.op is Ops.REDUCE else _row_limit(c, loop, around, limits, order)
                for c in closers[loop]
            ]
            ends = [limit for limit in dict.fromkeys(found) if limit is not None]
            own = {r for closer in closers[loop] for r in closed_ranges(closer)}
            if None not in found and (len(ends) == 1 or all(own.isdisjoint(end.ranges) for end in ends)):
                limits[loop] = simplify(combined(Ops.MAX, ends).alu(Ops.MIN, loop.src[0]))
    table: dict[UOp, UOp] = {}
    for loop in sorted(limits, key=lambda loop: len(paths[loop])):  # an end may name a loop around, itself trimmed
        table[loop] = loop.replace(src=(substitute(limits[loop], table),))
    return simplify(substitute(ast, table))


def _without_unread(ast: UOp) -> UOp:
    """Run the outermost loop of a value zero times where nobody reads the value."""
    order = ast.toposort()
    if not any(node.op is Ops.WHERE and node.src[1].op is not Ops.CONST for node in order):
        return ast
    read_if = _conditions(order)
    written = {memory_of(store.src[0]) for store in order if store.op is Ops.STORE}
    closers: dict[UOp, list[UOp]] = {}
    for node in order:
        for loop in walked(closed_ranges(node))[:1]:
            closers.setdefault(loop, []).append(node)
    inner = {loop for node in order for loop in walked(closed_ranges(node))[1:]}
    paths: dict[UOp, tuple[UOp, ...]] = {}
    table: dict[UOp, UOp] = {}
    for loop, nodes in closers.items():
        parts = set.intersection(*(read_if[node] for node in nodes))
        is_short = max(prod(iterations(r) for r in closed_ranges(node)) for node in nodes) < _LEAST
        if not parts or is_short or loop in inner or loop.arg[1] != AxisKind.REDUCE or loop.src[0].ranges:
            continue
        paths = paths or loop_paths(ast)
        around = set(paths[loop][:-1])
        runs = [one for part in sorted(parts, key=order.index) if (one := _holds(part, around, written)) is not None]
        if runs:
            table[loop] = loop.replace(src=(simplify(loop.src[0] * combined(Ops.MIN, runs)),))
    return simplify(substitute(ast, table)) if table else ast


def _conditions(order: list[UOp]) -> dict[UOp, set[UOp]]:
    """For each node the conditions that hold whenever its value matters. An address matters always."""
    found: dict[UOp, set[UOp]] = {}
    for node in reversed(order):
        own = found.setdefault(node, set())
        for position, source in enumerate(node.src):
            more = set(conjuncts(node.src[0])) if node.op is Ops.WHERE and position == 1 else set[UOp]()
            passed = set[UOp]() if node.op is Ops.INDEX and position else own | more
            found[source] = found[source] & passed if source in found else passed
    return found


def _holds(part: UOp, around: set[UOp], written: set[UOp]) -> UOp | None:
    """Return 1 or 0: whether a comparison can be true for anything inside these loops."""
    if part.op not in (Ops.LT, Ops.LE):
        return None
    left, right = (_as_index(s, around, written) for s in part.src)
    if left is None or right is None:
        return None
    terms, offset = linear(right - left)
    loaded = {atom for atom in terms if atom.op is Ops.CAST}
    most = greatest(terms, offset + (part.op is Ops.LE), around | loaded, {}) if loaded else None
    return None if most is None else most.alu(Ops.MAX, index_const(0)).alu(Ops.MIN, index_const(1))


def _as_index(value: UOp, around: set[UOp], written: set[UOp]) -> UOp | None:
    """The same number as an index: of loops, or loaded once for these loops. None for another."""
    while value.op is Ops.CAST and value.dtype.is_int and value.src[0].dtype.is_int:
        low, high = value.src[0].bounds
        if low < value.dtype.min or high > value.dtype.max:
            return None
        value = value.src[0]
    if value.dtype.is_index:
        return value
    is_fixed = value.op is Ops.LOAD and value.ranges <= around and memory_of(value.src[0]) not in written
    return value.cast(dtypes.index) if is_fixed and value.dtype.is_int else None


def gate_of(node: UOp) -> UOp | None:
    """The condition outside which a REDUCE folds nothing but neutral elements."""
    return masked(node.src[0], node.arg[0])[0] if node.arg[1] == 1 else None


def _sum_limit(node: UOp, loop: UOp, around: set[UOp]) -> UOp | None:
    """Return how many iterations can still have a true gate, as an expression in the loops around."""
    limits: list[UOp] = []
    for part in conjuncts(gate_of(node)):
        step, atoms, offset = asked(part, loop)
        rest = greatest({atom: -k for atom, k in atoms.items()}, -offset, around, {}) if step > 0 else None
        if rest is not None:  # step * loop < rest
            limits.append(simplify((rest + (step - 1)) // step))
    return combined(Ops.MIN, limits) if limits else None


def _row_limit(node: UOp, loop: UOp, around: set[UOp], limits: dict[UOp, UOp], order: list[UOp]) -> UOp | None:
    """Return how many iterations write elements that are read."""
    filled = linear(node.src[1].src[0].src[1])[0]
    step = filled.get(loop, 0)
    reads = [u.src[1] for u in order if u.op is Ops.INDEX and u.src[0] is node]
    if node.arg != 1 or step <= 0 or not reads:
        return None
    ends: dict[UOp, None] = {}
    for read in reads:
        terms, offset = linear(read)
        # unrolled instances and lanes, the same for both
        rest = {atom: k for atom, k in terms.items() if filled.get(atom) != k}
        most = greatest(rest, offset, around, limits) if any(atom in limits for atom in terms) else None
        if most is None:
            return None
        ends[most] = None
    return simplify(combined(Ops.MAX, ends) // step + 1)


def greatest(terms: Mapping[UOp, int], offset: int, around: set[UOp], limits: dict[UOp, UOp]) -> UOp | None:
    """Return the maximum of a sum, as an expression in the loops around."""
    total = index_const(offset)
    for atom, factor in terms.items():
        if atom.op is Ops.MIN and atom.src[1].is_const:  # past its end an output loop is clamped
            sign, (inner, shift) = (1 if factor > 0 else -1), linear(atom.src[0])
            most = greatest({a: sign * k for a, k in inner.items()}, sign * shift, around, limits)
            if most is None:
                return None
            end = index_const(sign * atom.src[1].arg)
            total = total + most.alu(Ops.MIN if sign > 0 else Ops.MAX, end) * abs(factor)
        elif atom.op is Ops.VARIABLE or (atom in around and atom not in limits):
            total = total + atom * factor
        elif atom in limits and limits[atom].ranges <= around:
            if factor < 0:
                return None
            total = total + (limits[atom] - 1) * factor
        elif atom.op is Ops.RANGE:
            low, high = atom.bounds
            total = total + factor * (high if factor > 0 else low)
        else:
            return None
    return simplify(total)


def asked(part: UOp, loop: UOp) -> tuple[int, dict[UOp, int], int]:
    """Split a comparison of indices: step * loop + the sum of the atoms + offset < 0; a step of 0 for other
    conditions."""
    if part.op not in (Ops.LT, Ops.LE, Ops.MIN, Ops.MAX) or not part.src[0].dtype.is_index:
        return 0, {}, 0
    terms, offset = linear(part.src[0] - part.src[1])
    return terms.get(loop, 0), {atom: k for atom, k in terms.items() if atom is not loop}, offset - (part.op is Ops.LE)

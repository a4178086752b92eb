"""Loops end where their gates say that nothing is left: outside the triangle of a causal mask nothing is computed.

When: first of the list, once loops have been cut. Why there: a tile ends where its last row does, so its rows must be
known. A sum over where(g, value, neutral) needs no iteration in which g is false for all its rows; a row that a kernel
keeps needs no element that nobody reads. And the first part of a loop, in which the gate is known to hold, is a loop
without it (`peel_loops`). Guarantees: the same results; a loop may depend on the loops around it.
Tests: tests/compiler/test_trim.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import count
from math import prod

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, index_const, linear, make_range, simplify, substitute

from .groups import fills_shared
from .kernel import conjuncts, iterations
from .linearize import loop_paths, walked
from .split_reduce import neutral_element

__all__ = ["asked", "peel_loops", "trim_loops"]

_LEAST = 16  # iterations, each of its copies one; a shorter loop is not worth a test of its end


def trim_loops(ast: UOp) -> UOp:
    """The kernel with loops that stop early."""
    order = ast.toposort()
    if not any(node.op is Ops.REDUCE and _gate(node) is not None for node in order):
        return ast
    paths = loop_paths(ast)
    together = {r for node in order if fills_shared(node) for r in (*node.ranges, *closed_ranges(node))}
    limits: dict[UOp, UOp] = {}
    closers: dict[UOp, list[UOp]] = {}
    for node in order:
        for loop in closed_ranges(node):
            closers.setdefault(loop, []).append(node)
    seen: set[UOp] = set()
    for node in reversed(order):  # who reads a kept row comes before who fills it
        seen.add(node)
        for loop in closed_ranges(node):
            is_fixed = loop in together or loop.arg[1] != AxisKind.REDUCE or not loop.src[0].is_const
            if is_fixed or loop.src[0].arg < 2 or iterations(loop) * _copies(node) < _LEAST:
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
                limits[loop] = simplify(reduce(lambda a, b: a.alu(Ops.MAX, b), ends).alu(Ops.MIN, loop.src[0]))
    table: dict[UOp, UOp] = {}
    for loop in sorted(limits, key=lambda loop: len(paths[loop])):  # an end may name a loop around, itself trimmed
        table[loop] = loop.replace(src=(substitute(limits[loop], table),))
    return simplify(substitute(ast, table))


def _copies(node: UOp) -> int:
    return prod(iterations(r) for r in closed_ranges(node) if r.arg[1] == AxisKind.UNROLL)


def _gate(node: UOp) -> UOp | None:
    """The condition outside which a REDUCE folds nothing but neutral elements."""
    value = node.src[0]
    if node.arg[1] != 1 or value.op is not Ops.WHERE:
        return None
    neutral = neutral_element(node.arg[0], value)
    return value.src[0] if value.src[2] is neutral else None


def _sum_limit(node: UOp, loop: UOp, around: set[UOp]) -> UOp | None:
    """How many iterations can still have an open gate, seen from the loops around."""
    gate = _gate(node) if node.op is Ops.REDUCE else None
    least: UOp | None = None
    for part in conjuncts(gate):
        step, atoms, offset = asked(part, loop)
        if step <= 0:
            continue
        rest = _greatest({atom: -k for atom, k in atoms.items()}, -offset, around, {})
        if rest is not None:  # step * loop < rest
            limit = simplify((rest + (step - 1)) // step)
            least = limit if least is None else least.alu(Ops.MIN, limit)
    return least


def _row_limit(node: UOp, loop: UOp, around: set[UOp], limits: dict[UOp, UOp], order: list[UOp]) -> UOp | None:
    """How many iterations fill what somebody reads."""
    filled = linear(node.src[1].src[0].src[1])[0]
    step = filled.get(loop, 0)
    reads = [u.src[1] for u in order if u.op is Ops.INDEX and u.src[0] is node]
    if node.arg != 1 or step <= 0 or not reads:
        return None
    last: UOp | None = None
    for read in reads:
        terms, offset = linear(read)
        if not any(atom in limits for atom in terms):
            return None
        terms = {atom: k for atom, k in terms.items() if filled.get(atom) != k}  # copies and lanes, the same for both
        most = _greatest(terms, offset, around, limits)
        if most is None:
            return None
        last = most if last is None or most is last else last.alu(Ops.MAX, most)
    assert last is not None
    return simplify(last // step + 1)


def _greatest(terms: Mapping[UOp, int], offset: int, around: set[UOp], limits: dict[UOp, UOp]) -> UOp | None:
    """The most that a sum can be, as an expression in the loops around."""
    total = index_const(offset)
    for atom, factor in terms.items():
        if atom.op is Ops.MIN and atom.src[1].is_const:  # past its end an output loop is clamped
            sign, (inner, shift) = (1 if factor > 0 else -1), linear(atom.src[0])
            most = _greatest({a: sign * k for a, k in inner.items()}, sign * shift, around, limits)
            if most is None:
                return None
            end = index_const(sign * atom.src[1].arg)
            total = total + most.alu(Ops.MIN if sign > 0 else Ops.MAX, end) * abs(factor)
        elif atom in around and atom not in limits:
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
    """Of a comparison of places: step * loop + the sum of the atoms + offset < 0; a step of 0 for anything else."""
    if part.op not in (Ops.LT, Ops.LE, Ops.MIN, Ops.MAX) or part.src[0].dtype.kind.value != "index":
        return 0, {}, 0
    terms, offset = linear(part.src[0] - part.src[1])
    return terms.get(loop, 0), {atom: k for atom, k in terms.items() if atom is not loop}, offset - (part.op is Ops.LE)


# --- in two parts
def peel_loops(ast: UOp) -> UOp:
    """The kernel with loops that depend on others cut in two where their gates begin to matter."""
    closers: dict[UOp, list[UOp]] = {}
    for node in ast.toposort():
        for loop in walked(closed_ranges(node)):
            if loop.arg[1] == AxisKind.REDUCE and loop.src[0].ranges:
                closers.setdefault(loop, []).append(node)
    paths, fresh = loop_paths(ast) if closers else {}, count()
    for loop in sorted(closers, key=lambda loop: -len(paths[loop])):  # inner ones first: the rest is copied with them
        gates = [part for node in closers[loop] if node.op is Ops.REDUCE for part in conjuncts(_gate(node))]
        sure = {part: known for part in gates if (known := _known(part, loop, set(paths[loop][:-1]))) is not None}
        if sure and all(walked(closed_ranges(node)) == [loop] for node in closers[loop]):
            ast = _in_two(ast, loop, sure, fresh)
    return simplify(ast) if closers else ast


def _known(part: UOp, loop: UOp, around: set[UOp]) -> UOp | None:
    """In how many iterations, from the first on, the comparison holds for all that is inside; None: in none."""
    step, rest, offset = asked(part, loop)
    most = _greatest(rest, offset, around, {}) if step > 0 else None
    return None if most is None or most.bounds[0] >= 0 else (step - 1 - most) // step  # step * loop + most < 0


def _in_two(ast: UOp, loop: UOp, sure: dict[UOp, UOp], fresh: Iterator[int]) -> UOp:
    known = simplify(reduce(lambda a, b: a.alu(Ops.MIN, b), sure.values(), loop.src[0]).alu(Ops.MAX, index_const(0)))
    size = simplify(loop.src[0] - known)
    first, rest = loop.replace(src=(known,)), make_range(f"{loop.arg[0]}.p{next(fresh)}", size, AxisKind.REDUCE)
    before = {part: part | True for part in sure} | {loop: first}
    last = index_const(int(loop.bounds[1]))  # never less than the sum, which no one can read off its parts
    behind: dict[UOp, UOp] = {loop: (rest + known).alu(Ops.MIN, last)}
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        new = done[node] = node.replace(src=tuple(done[s] for s in node.src))
        closed = closed_ranges(new)
        if loop not in closed:
            continue
        inside = new.src[: -len(closed)]
        _own_loops(inside, loop, rest, behind, fresh)
        one, other = (
            (*(substitute(s, table) for s in inside), *(own if r is loop else r for r in new.src[-len(closed) :]))
            for table, own in ((before, first), (behind, rest))
        )
        done[node] = new.replace(src=one)
        if size.bounds != (0, 0):  # else the answer was known to the end
            is_sum = new.op is Ops.REDUCE
            more = new.replace(src=other if is_sum else (done[node], *other[1:]))
            done[node] = done[node].alu(new.arg[0], more) if is_sum else more
    return done[ast]


def _own_loops(inside: Iterable[UOp], loop: UOp, rest: UOp, table: dict[UOp, UOp], fresh: Iterator[int]) -> None:
    """Loops and memory inside the loop get others of their own in its second part."""
    changing = [u for one in inside for u in one.toposort() if loop in u.ranges or loop in u.src]
    for r in (r for node in changing for r in closed_ranges(node)):
        if r not in table:
            table[r] = make_range(f"{r.arg[0]}.p{next(fresh)}", substitute(r.src[0], table), AxisKind(r.arg[1]))
    for node in changing:
        if node.op is Ops.LOCAL and node not in table:
            table[node] = node.replace(src=tuple(rest if s is loop else table.get(s, s) for s in node.src))

"""Split a loop whose quotient and remainder are used separately: `i // 49` and `i % 49` in the operand of a reduction
become two loops.

When: before adjacent loops are merged. Why there: the optimizer reads strides from affine indices, and a quotient has
no stride. A reshape between a reduction and its reader makes such indices, as do strides and gradients of windows.
Guarantees: the same elements in the same order. Tests: tests/compiler/kernel/test_split_loops.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, linear, make_range, simplify, with_sources

from .facts import loops_of, order_of, reordered

__all__ = ["split_loops"]

_LANES = 16  # float32 elements of the widest vector: a contiguous loop is not split into shorter ones
_VALUE_BYTES = 4  # of a float32
_DIGITS = frozenset({Ops.FLOORDIV, Ops.MOD})


def split_loops(ast: UOp) -> UOp:
    """Return the kernel with a loop for each quotient and remainder that the operands of a reduction use."""
    while found := next(_splits(ast), None):
        ast = _split(ast, *found)
    return ast


def _splits(ast: UOp) -> Iterator[tuple[UOp, int]]:
    """Loops that can be split, each with the length of its inner loop."""
    order = ast.toposort()
    digits: dict[UOp, set[int]] = {}
    for node in {n for r in order if r.op is Ops.REDUCE for n in r.toposort() if n.op in _DIGITS}:
        loop, by = node.src
        if loop.op is Ops.RANGE and by.is_const and loop.src[0].is_const:
            digits.setdefault(loop, set()).add(int(by.arg))
    for loop in (node for node in order if node in digits):
        lengths = [*sorted(digits[loop]), int(loop.src[0].arg)]
        is_chain = lengths[0] > 1 and all(a < b and b % a == 0 for a, b in pairwise(lengths))
        if is_chain and _is_splittable(order, loop, lengths[0]) and _is_used_apart(order, loop):
            yield loop, lengths[0]


def _is_splittable(order: list[UOp], loop: UOp, length: int) -> bool:
    """True if only addresses use the loop, affinely or by quotients and remainders."""
    for node in order:
        if node.op is Ops.INDEX:
            terms, _ = linear(node.src[1])
            if not all(atom is loop or _is_digit(atom, loop) for atom in terms if loop in atom.ranges):
                return False
            if abs(terms.get(loop, 0)) == 1 and (length < _LANES or loop.arg[1] == AxisKind.REDUCE):
                return False  # lanes of neighbours; of reduction elements, partial sums, or indices for scatters
            if node.gate is not None and loop in node.gate.ranges:
                return False
        elif node.op in (Ops.LOCAL, Ops.RANGE):
            if loop in node.src or any(loop in s.ranges for s in node.src):
                return False
        elif node.dtype.is_index or node.op is Ops.SINK or closed_ranges(node):
            continue
        elif any(s.dtype.is_index and loop in s.ranges for s in node.src):  # the index is a value as well
            return False
    return True


def _is_used_apart(order: list[UOp], loop: UOp) -> bool:
    """True if an address has a smaller stride for a quotient than for a remainder, or uses only some of them.

    Matrices in blocks of rows use all of them in order, and have their own schedules; so have narrow operands.
    """
    loads = [node for node in order if node.op is Ops.LOAD]
    if any(load.dtype.size_bytes < _VALUE_BYTES for load in loads):
        return False
    for load in loads:
        terms = linear(load.src[0].src[1])[0]
        digits = [atom for atom in terms if atom is not loop and loop in atom.ranges]
        lowest = [abs(terms[atom]) for atom in digits if atom.op is Ops.MOD and atom.src[0] is loop]
        if digits and (len(digits) < 2 or not lowest or lowest[0] > min(abs(terms[atom]) for atom in digits)):
            return True
    return False


def _is_digit(atom: UOp, loop: UOp) -> bool:
    """True if the atom divides the loop by constants."""
    while atom.op in _DIGITS and atom.src[1].is_const:
        atom = atom.src[0]
    return atom is loop


def _split(ast: UOp, loop: UOp, length: int) -> UOp:
    name, kind = loop.arg
    names = loops_of(ast)
    inner_name = next(f"{name[0]}{n}" for n in count() if f"{name[0]}{n}" not in names)
    outer = make_range(name, int(loop.src[0].arg) // length, kind)
    inner = make_range(inner_name, length, kind)
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        if node is loop:
            done[node] = outer * length + inner
            continue
        src = [done.get(s, s) for s in node.src]
        if loop in closed_ranges(node):
            src = [part for s in node.src for part in ((outer, inner) if s is loop else (done.get(s, s),))]
        done[node] = with_sources(node, tuple(src))
    order = [part for n in order_of(ast) for part in ((n, inner_name) if n == name else (n,))]
    return simplify(reordered(done[ast], order))

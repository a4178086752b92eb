"""Hoisted scales: factors that are invariant in the loops of a reduction are multiplied once, after it: s1 * x1 + s1 *
x2 becomes s1 * (x1 + x2). A reduction of several kinds of terms becomes several, each with its own factors.

Only for an explicit action; no search tries it: such a sum rounds differently, as in any other order, and may
overflow where the scaled terms do not.
Tests: tests/compiler/optimize/test_factors.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add, mul

from kernmill.ir import Op, Ops, UOp, closed_ranges, rebuilt

__all__ = ["factored"]


def factored(ast: UOp) -> UOp:
    """Return the kernel with all such factors moved behind its float sums.

    Raises:
        ValueError: there are no such factors.
    """
    new = rebuilt(ast, lambda _, node: _behind(node) if _is_sum(node) else node)
    if new is ast:
        raise ValueError("no reduction operand has a factor that is invariant in its loops")
    return new


def _is_sum(node: UOp) -> bool:
    return node.op is Ops.REDUCE and node.arg == (Ops.ADD, 1) and node.dtype.is_float


def _behind(total: UOp) -> UOp:
    loops = set(closed_ranges(total))
    terms = [(_product(factors, loops, is_inside=True), _product(factors, loops, is_inside=False))
             for factors in ([*_operands(term, Ops.MUL)] for term in _operands(total.src[0], Ops.ADD))]  # fmt: skip
    if any(inside is None for inside, _ in terms) or all(outside is None for _, outside in terms):
        return total
    sums = [(total.replace(src=(inside, *total.src[1:])), outside) for inside, outside in terms if inside is not None]
    return reduce(add, [of_term if outside is None else outside * of_term for of_term, outside in sums])


def _operands(u: UOp, op: Op) -> Iterator[UOp]:
    """Return the operands of a chain of one op."""
    if u.op is op:
        for s in u.src:
            yield from _operands(s, op)
    else:
        yield u


def _product(factors: list[UOp], loops: set[UOp], *, is_inside: bool) -> UOp | None:
    chosen = [u for u in factors if loops.isdisjoint(u.ranges) is not is_inside]
    return reduce(mul, chosen) if chosen else None

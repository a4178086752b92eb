"""Reductions at computed indices: each term is added at the index that it contains, instead of each output testing all
terms.

A reduction over where(index == f(n), x(n), neutral), for all indices of an output loop, compares every index with every
n. Instead, the output is initialized with the neutral element, and a sequential loop over n combines x(n) into element
f(n). Memory at the start of an iteration is a CARRY, so that no pass reorders the iterations or runs several at once.
Used by the action `scatter`. Why: docs/topics/scatter-sort-scan.md. Tests: tests/compiler/optimize/test_scatter.py.
"""

from __future__ import annotations

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, dtypes, make_range, memory_of, simplify, substitute

from ..kernel.facts import conjuncts, masked, neutral_element, order_of, reordered

__all__ = ["scattered"]


def scattered(ast: UOp, terms: UOp, output: UOp, name: str) -> UOp:
    """Scatter the terms of the kernel's reduction to the indices that they contain; `name` is the loop that initializes
    them.

    Raises:
        ValueError: the reduction has a different form.
    """
    to, total = ast.src[0].src
    if len(ast.src) > 1 or total.op is not Ops.REDUCE or total.arg[1] != 1 or closed_ranges(total) != (terms,):
        raise ValueError(f"only the output's reduction over {terms.arg[0]} alone can be scattered")
    op, value = total.arg[0], total.src[0]
    condition, term = masked(value, op)
    gate = conjuncts(condition)
    named = {part: found for part in gate if (found := _compared_index(part, terms, output)) is not None}
    if not named or output not in to.src[1].ranges or any(output in u.ranges for u in (term, *to.src[2:])):
        raise ValueError(f"the terms of {terms.arg[0]} contain no index into {output.arg[0]}")
    if any(node.op is Ops.LOAD and memory_of(node.src[0]) is to.src[0] for node in ast.toposort()):
        raise ValueError("the kernel reads the old values of its output")
    compared, number = next(iter(named.items()))
    at, size = number.cast(dtypes.index), output.src[0]
    inside = at.cast(dtypes.uint64) < size.cast(dtypes.uint64)  # a negative one is too large as uint64
    # other conditions may only be evaluated at a valid index
    table, inner = {output: at}, {output: inside.where(at, at.like(0))}
    for part in (*to.src[2:], *(substitute(part, inner) for part in gate if part is not compared)):
        inside = inside & part
    fill = make_range(name, output.src[0], AxisKind.REDUCE)
    start = UOp(Ops.STORE, dtypes.void, (substitute(to, {output: fill}), neutral_element(op, value)))
    filled = UOp(Ops.AFTER, to.dtype, (to.src[0], start, fill), 1)
    carried = UOp(Ops.CARRY, to.dtype, (filled, terms))
    there = UOp(Ops.INDEX, to.dtype, (carried, substitute(to.src[1], table), inside))
    old = (
        UOp(Ops.INDEX, to.dtype, (carried, substitute(to.src[1], inner), *to.src[2:])) if size.bounds[0] > 0 else there
    )
    so_far = UOp(Ops.LOAD, to.dtype, (old,)).alu(op, term)  # of a different element if the term is not stored
    loop = terms.replace(arg=(terms.arg[0], AxisKind.LOOP))
    ast = ast.replace(src=(substitute(UOp(Ops.STORE, dtypes.void, (there, so_far)), {terms: loop}),))
    rest = [other for other in order_of(ast) if other != output.arg[0]]
    return simplify(reordered(ast, (*rest, str(terms.arg[0]))))


def _compared_index(part: UOp, terms: UOp, output: UOp) -> UOp | None:
    """Return the value that a condition compares the index with."""
    if part.op is not Ops.EQ:
        return None
    for own, number in (part.src, part.src[::-1]):
        bare = own.src[0] if own.op is Ops.CAST and own.bounds == own.src[0].bounds else own
        if bare is output and terms in number.ranges and output not in number.ranges:
            return number
    return None

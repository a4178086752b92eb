"""A REDUCE becomes an accumulator: REG before its loops, CARRY and SET inside them, AFTER for the final value.

When: after vectors exist. Why there: an accumulator has the final dtype, lanes included. Guarantees: no REDUCE is left.
A sum of products, or of pairs of them, is a chain of FMAs if the target has them. This is the only contraction of a
product and a sum: a user's a*b + c is rounded twice. A sum of DOTs or MMAs is a chain of them. Tests:
tests/compiler/lower/test_lower_reduces.py.
"""

from __future__ import annotations

from functools import reduce

from kernmill.ir import Op, Ops, Target, UOp, closed_ranges, dtypes, with_sources

from ..kernel.facts import conjuncts, masked, neutral_element

__all__ = ["lower_reduces", "without_mask"]


def lower_reduces(ast: UOp, target: Target) -> UOp:
    """The kernel with accumulators."""
    done: dict[UOp, UOp] = {}
    count = 0
    for node in ast.toposort():
        new = with_sources(node, tuple([done[s] for s in node.src]))
        if new.op is Ops.REDUCE:
            new = _accumulate(new, f"acc{count}", target)
            count += 1
        elif (short := next((s for s in node.src if node.op is Ops.ADD and _is_short(s)), None)) is not None:
            new = new.src[1 - node.src.index(short)]  # the chain starts with its DOTs: one addition less
            for value in short.src:
                new = _add(new, done[value], Ops.ADD, target)
        done[node] = new
    return done[ast]


def _is_short(u: UOp) -> bool:
    """True if it is a sum over no loop of only DOTs: exact in any order."""
    return u.op is Ops.REDUCE and u.arg[0] is Ops.ADD and all(s.op is Ops.DOT for s in u.src)


def _accumulate(node: UOp, name: str, target: Target) -> UOp:
    op: Op = node.arg[0]
    loops = closed_ranges(node)
    around = sorted(node.ranges, key=lambda r: str(r.arg[0]))
    register = UOp(Ops.REG, node.dtype, (neutral_element(op, node), *around), name)
    start = [UOp(Ops.CARRY, node.dtype, (register, *loops))] if loops else []
    values = list(node.src[: node.arg[1]])
    while op in (Ops.MAX, Ops.MIN) and len(values) > 1:  # exact in any order: no long chain
        values.append(values.pop(0).alu(op, values.pop(0)))
    total = reduce(lambda total, value: _add(total, value, op, target), start + values)
    if not loops:
        return total
    return UOp(Ops.AFTER, node.dtype, (register, UOp(Ops.SET, dtypes.void, (register, total)), *loops), 1)


def _add(total: UOp, value: UOp, op: Op, target: Target) -> UOp:
    value = without_mask(value) if op is Ops.ADD else value
    gate, inside = masked(value, op)
    if gate is not None:  # one masked instruction if the target has masks
        return gate.where(_add(total, inside, op, target), total)
    if value.op in (Ops.DOT, Ops.MMA) and value.src[2].is_const and value.src[2].arg == 0:
        return value.replace(src=(*value.src[:2], total))
    if op is Ops.ADD and value.dtype.is_float and Ops.FMA in target.ops:
        if value.op is Ops.MUL:
            return value.src[0].alu(Ops.FMA, value.src[1], total)
        if value.op is Ops.ADD and all(s.op is Ops.MUL for s in value.src):
            return _add(_add(total, value.src[0], op, target), value.src[1], op, target)
    return total.alu(op, value)


def without_mask(value: UOp) -> UOp:
    """Return a*b for where(g, a*b, 0) with a and b loaded under g: both are 0 outside, and so is a*b.

    For integers one of them is enough; for floats 0 * inf is nan.
    """
    gate, product = masked(value, Ops.ADD)
    if gate is None or product.op is not Ops.MUL:
        return value
    enough = all if product.dtype.is_float else any
    return product if enough(_is_zero_outside(s, gate) for s in product.src) else value


def _is_zero_outside(u: UOp, gate: UOp) -> bool:
    if u.op in (Ops.CAST, Ops.BROADCAST):
        return _is_zero_outside(u.src[0], gate.src[0] if gate.op is Ops.BROADCAST and u.op is Ops.BROADCAST else gate)
    return u.op is Ops.LOAD and {*conjuncts(gate)} <= {*conjuncts(u.src[0].gate)}

"""A REDUCE becomes an accumulator: REG before its loops, CARRY and SET inside them, AFTER for the final value.

When: after vectors exist. Why there: an accumulator has the final dtype, lanes included. Guarantees: no REDUCE is left.
A sum of products, or of pairs of them, is a chain of FMAs if the target has them. This is the only contraction of a
product and a sum: a user's a*b + c is rounded twice. A sum of DOTs or MMAs is a chain of them. `nest_sums`, when: the
list is written. Tests: tests/compiler/lower/test_lower_reduces.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from kernmill.ir import AxisKind, Op, Ops, Target, UOp, closed_ranges, const, dtypes, with_sources

from ..kernel.facts import conjuncts, masked, neutral_element

__all__ = ["lower_reduces", "nest_sums", "without_mask"]

_BLOCK = 64  # approximate terms of a short sum: another addition and loop end cost little in comparison
_MOST_SUMS = 8  # accumulators of a plain sum in one loop; tiles of products have more
_FLOATS = (dtypes.float32, dtypes.float64)  # half types are sums of these


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
            new = new.src[1 - node.src.index(short)]  # the chain starts with it: no addition
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
    """Return a*b for where(g, a*b, 0) with a and b loaded under g: both are 0 outside, and so is a*b. For ints one
    of them is enough."""
    gate, product = masked(value, Ops.ADD)
    if gate is None or product.op is not Ops.MUL:
        return value
    enough = all if product.dtype.is_float else any
    return product if enough(_is_zero_outside(s, gate) for s in product.src) else value


def _is_zero_outside(u: UOp, gate: UOp) -> bool:
    if u.op in (Ops.CAST, Ops.BROADCAST):
        return _is_zero_outside(u.src[0], gate.src[0] if gate.op is Ops.BROADCAST and u.op is Ops.BROADCAST else gate)
    return u.op is Ops.LOAD and {*conjuncts(gate)} <= {*conjuncts(u.src[0].gate)}


def nest_sums(uops: list[UOp]) -> list[UOp]:
    """Nest long sums of floats in levels: a large partial sum loses the low bits of small terms added to it.

    In the list every value has its position, so the blocks of a loop replace the loop there. Loops that end at a
    data-dependent position, and tiles of a matrix unit, are unchanged. Why: docs/topics/reductions.md.
    """
    sums: dict[tuple[UOp, ...], list[UOp]] = {}  # by their loops
    for u in uops:
        if u.op is Ops.AFTER and u.src[0].op is Ops.REG and u.dtype.scalar in _FLOATS and u.src[0].src[0].arg == 0:
            sums.setdefault(closed_ranges(u), []).append(u)  # no other reduction starts with 0
    for loops, found in sums.items():
        sizes = [r.src[0].arg if r.src[0].is_const and r.arg[1] == AxisKind.REDUCE else 0 for r in loops]
        if prod(sizes) > 2 * _BLOCK and len(found) <= _MOST_SUMS and Ops.MMA not in {u.src[1].src[1].op for u in found}:
            level = max(n for n in range(len(sizes)) if 2 * prod(sizes[n:]) >= _BLOCK)
            return nest_sums(_nested(uops, found, level, prod(sizes[level + 1 :])))
    return uops


def _nested(uops: list[UOp], totals: Sequence[UOp], level: int, inside: int) -> list[UOp]:
    """Return the list in which a block of a loop has separate accumulators."""
    loops = closed_ranges(totals[0])
    loop = part = place = loops[level]
    if (size := loop.src[0].arg) * inside > 2 * _BLOCK:
        lengths = range(max(2, _BLOCK // 2 // inside), 2 * _BLOCK // inside)
        block = min(lengths, key=lambda n: (size % n > 0, abs(n * inside - _BLOCK)))
        last, whole = (size - 1) // block, const(loop.dtype, block)
        outer = loop.replace(src=(const(loop.dtype, last + 1),), arg=(f"{loop.arg[0]}.o", *loop.arg[1:]))
        length = outer.alu(Ops.LT, last).where(whole, size - last * block) if size % block else whole
        part = loop.replace(src=(length,), arg=(f"{loop.arg[0]}.t", *loop.arg[1:]))
        place = outer.alu(Ops.MUL, whole).alu(Ops.ADD, part)
    head = place.toposort()
    around = tuple(u for u in head if u.op is Ops.RANGE and u is not part)
    new = {r: r.replace(src=(*r.src, *around), arg=f"{r.arg}.{loop.arg[0]}") for r in [u.src[0] for u in totals]}
    at, first, end = head.index(part), uops.index(loop), uops.index(UOp(Ops.END, dtypes.void, (loop,)))
    out = [*(u for u in head if u.op is Ops.CONST), *uops[:first], *head[:at], *new.values(), *head[at:]]

    def moved(u: UOp) -> UOp:
        here = (*around, part) if u.op in (Ops.REG, Ops.LOCAL, Ops.CARRY, Ops.AFTER) else (place,)
        src = [x for s in u.src for x in (here if s is loop else (new.get(s, s),))]
        return new.setdefault(u, with_sources(u, tuple(src)))

    out += [*map(moved, uops[first + 1 : end]), UOp(Ops.END, dtypes.void, (part,))]
    for u in totals:
        register, step = u.src[:2]
        done = UOp(Ops.AFTER, u.dtype, (new[register], new[step], part, *loops[level + 1 :]), 1)
        so_far = UOp(Ops.CARRY, u.dtype, (register, *loops[:level], *around))
        added = UOp(Ops.SET, dtypes.void, (register, so_far.alu(Ops.ADD, done)))
        out += [done, so_far, added.src[1], added]
        new |= {register: register, u: UOp(Ops.AFTER, u.dtype, (register, added, *loops[:level], *around), 1)}
    out += [UOp(Ops.END, dtypes.void, (r,)) for r in around]
    return list(dict.fromkeys([*out, *map(moved, uops[end + 1 :])]))

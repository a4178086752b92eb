"""Blocked summation: a long sum of floats becomes sums of blocks: a large partial sum loses low bits of small terms.

When: on the linear list. Why there: every value has its final position, so the blocks of a loop replace the loop there.
Loops whose end is known only at launch, and tiles of a matrix unit, are unchanged. Reasons: docs/topics/reductions.md.
Tests: tests/compiler/lower/test_block_sums.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, const, dtypes, with_sources

__all__ = ["block_sums"]

_BLOCK = 64  # approximate terms in a block; one more addition and loop end for each block cost little
_MOST_SUMS = 8  # accumulators of a plain sum in one loop; tiles of products have more
_FLOATS = (dtypes.float32, dtypes.float64)  # a sum of a half type is accumulated in one of these


def block_sums(uops: list[UOp]) -> list[UOp]:
    """Return the list with long sums of floats in blocks, or in blocks of blocks."""
    sums: dict[tuple[UOp, ...], list[UOp]] = {}  # by their loops
    for u in uops:
        if u.op is Ops.AFTER and u.src[0].op is Ops.REG and u.dtype.scalar in _FLOATS and u.src[0].src[0].arg == 0:
            sums.setdefault(closed_ranges(u), []).append(u)  # no other reduction starts with 0
    for loops, found in sums.items():
        sizes = [r.src[0].arg if r.src[0].is_const and r.arg[1] == AxisKind.REDUCE else 0 for r in loops]
        if prod(sizes) > 2 * _BLOCK and len(found) <= _MOST_SUMS and Ops.MMA not in {u.src[1].src[1].op for u in found}:
            level = max(n for n in range(len(sizes)) if 2 * prod(sizes[n:]) >= _BLOCK)
            return block_sums(_blocked(uops, found, level, prod(sizes[level + 1 :])))
    return uops


def _blocked(uops: list[UOp], totals: Sequence[UOp], level: int, inner_count: int) -> list[UOp]:
    """Return the list in which a block of `loops[level]` has separate accumulators.

    `inner_count`: iterations of the loops inside of it.
    """
    loops = closed_ranges(totals[0])
    loop = inner_loop = index = loops[level]
    if (size := loop.src[0].arg) * inner_count > 2 * _BLOCK:
        lengths = range(max(2, _BLOCK // 2 // inner_count), 2 * _BLOCK // inner_count)
        block = min(lengths, key=lambda n: (size % n > 0, abs(n * inner_count - _BLOCK)))
        last, block_size = (size - 1) // block, const(loop.dtype, block)
        outer = loop.replace(src=(const(loop.dtype, last + 1),), arg=(f"{loop.arg[0]}.o", *loop.arg[1:]))
        length = outer.alu(Ops.LT, last).where(block_size, size - last * block) if size % block else block_size
        inner_loop = loop.replace(src=(length,), arg=(f"{loop.arg[0]}.t", *loop.arg[1:]))
        index = outer.alu(Ops.MUL, block_size).alu(Ops.ADD, inner_loop)
    head = index.toposort()
    around = tuple(u for u in head if u.op is Ops.RANGE and u is not inner_loop)
    new = {r: r.replace(src=(*r.src, *around), arg=f"{r.arg}.{loop.arg[0]}") for r in [u.src[0] for u in totals]}
    at, first, end = head.index(inner_loop), uops.index(loop), uops.index(UOp(Ops.END, dtypes.void, (loop,)))
    out = [*(u for u in head if u.op is Ops.CONST), *uops[:first], *head[:at], *new.values(), *head[at:]]

    def moved(u: UOp) -> UOp:
        here = (*around, inner_loop) if u.op in (Ops.REG, Ops.LOCAL, Ops.CARRY, Ops.AFTER) else (index,)
        src = [x for s in u.src for x in (here if s is loop else (new.get(s, s),))]
        return new.setdefault(u, with_sources(u, tuple(src)))

    out += [*map(moved, uops[first + 1 : end]), UOp(Ops.END, dtypes.void, (inner_loop,))]
    for u in totals:
        register, step = u.src[:2]
        done = UOp(Ops.AFTER, u.dtype, (new[register], new[step], inner_loop, *loops[level + 1 :]), 1)
        so_far = UOp(Ops.CARRY, u.dtype, (register, *loops[:level], *around))
        added = UOp(Ops.SET, dtypes.void, (register, so_far.alu(Ops.ADD, done)))
        out += [done, so_far, added.src[1], added]
        new |= {register: register, u: UOp(Ops.AFTER, u.dtype, (register, added, *loops[:level], *around), 1)}
    out += [UOp(Ops.END, dtypes.void, (r,)) for r in around]
    return list(dict.fromkeys([*out, *map(moved, uops[end + 1 :])]))

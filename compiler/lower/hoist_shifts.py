"""Quants of a few bits are multiplied without shifting them, and sums are shifted instead.

Then `sum((b >> 4 & 15) * x)` is `sum((b & 240) * x) >> 4`: one shift for a sum instead of one for each word.
A sum of quants from several bit positions is one of sums: `sum((b & 15) * x) + (sum((b & 240) * y) >> 4)`. Higher
positions are shifted in steps: `s + ((t + (u >> 2)) >> 2)`. When: after find_dots. Why there: the words of a reduction
are in one REDUCE, so the reductions that share them can be counted. Assumes: DOT of bytes is one of unsigned by signed
ones. Guarantees: exact values: what is shifted is a multiple of the divisor, and no sum overflows. Unchanged: words
shared by enough rows of x that their sums would take more shifts, and bytes so large that the target's DOT takes more
instructions for them (`Target.dot_most`). Tests: tests/compiler/lower/test_hoist_shifts.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

from kernmill.ir import Ops, Target, UOp, closed_ranges, dtypes, rebuilt

from ..kernel.facts import iterations
from ..kernel.reduce_loops import separate_loops
from .find_dots import terms_of_a_dot

__all__ = ["hoist_shifts"]

_BYTE = 255


def hoist_shifts(ast: UOp, target: Target) -> UOp:
    """Return the kernel with sums shifted instead of quants."""
    users = Counter(node.src[0] for node in ast.toposort() if node.op is Ops.DOT)
    if not any(_shift_of(codes, target.dot_most) for codes in users):
        return ast
    return separate_loops(rebuilt(ast, lambda _, new: _hoisted(new, users, target) if new.op is Ops.REDUCE else new))


def _hoisted(total: UOp, users: Mapping[UOp, int], target: Target) -> UOp:
    dots, loops = total.src[: total.arg[1]], closed_ranges(total)
    shifts = [_shift_of(dot.src[0], target.dot_most) if dot.op is Ops.DOT else 0 for dot in dots]
    rows = max((users.get(dot.src[0], 1) for dot, shift in zip(dots, shifts, strict=True) if shift), default=1)
    steps = sorted({0, *shifts}, reverse=True)
    terms = prod(map(iterations, loops)) * len(dots) * terms_of_a_dot(dtypes.uint8)
    is_fewer = rows * (len(steps) - 1) < sum(shift > 0 for shift in shifts)
    if not is_fewer or terms * _BYTE**2 > dtypes.int32.max:
        return total
    result = None
    for shift, below in zip(steps, [*steps[1:], 0], strict=True):
        of_shift = [_moved(dot, by) if by else dot for dot, by in zip(dots, shifts, strict=True) if by == shift]
        if of_shift:
            part = total.replace(src=(*of_shift, *loops), arg=(Ops.ADD, len(of_shift)))
            result = part if result is None else result + part
        if result is not None and shift:
            result = result >> shift - below
    return total if result is None else result


def _moved(dot: UOp, by: int) -> UOp:
    codes = dot.src[0]
    return dot.replace(src=(codes.src[0].src[0] & (codes.src[1].arg << by & _BYTE), *dot.src[1:]))


def _shift_of(codes: UOp, most: int) -> int:
    """Return the shift of bytes before a mask; 0 if there is none, or the unshifted bytes would be too large."""
    if codes.op is not Ops.AND or codes.dtype.scalar is not dtypes.uint8 or codes.src[0].op is not Ops.SHR:
        return 0
    mask, by = codes.src[1], codes.src[0].src[1]
    if not all(u.is_const and isinstance(u.arg, int) for u in (mask, by)):  # unknown, or another one in each lane
        return 0
    return int(by.arg) if (mask.arg << by.arg & _BYTE) <= most else 0

"""Sums of four int8 products become the dot product instruction of the target.

When: between shuffle_lanes and lower_reduces. Why there: the four copies of an unrolled reduce loop are values of one
REDUCE, and what `stage` packed four by four is one load from which shuffle picks; putting the four side by side undoes
the picking, so that nothing is left of it (`shuffle` in shuffle_lanes.py). Assumes: nothing; other sums stay as they
are. Guarantees: a REDUCE gets DOT values only for pairs of types in target.dots, of lanes that fill a register or part
of it. Tests: tests/compiler/lower/test_find_dots.py.

An instruction for unsigned by signed bytes also does other pairs: a + 128 is a with its highest bit turned, and
sum(a*b) = sum((a + 128)*b) - sum(128*b). The second sum does not change with the rows that share b, so it stands
outside of their loop. Sums wrap, so every step is exact. Where b is copied, the action `bias` moves that instead.
Bytes that are added up as they are, as `bias` does, are multiplied by 1 where four neighbours are one load.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import Ops, Target, UOp, closed_ranges, const, dtypes, rebuilt

from ..reduce_loops import separate_loops
from ..shuffle_lanes import side_by_side
from .lower_reduces import without_mask

__all__ = ["BYTES", "GROUP", "find_dots", "moved"]

BYTES = (dtypes.int8, dtypes.uint8)
_HIGHEST = {dtypes.uint8: 128, dtypes.int8: -128}  # the highest bit, as a value
GROUP = 4  # products that one lane of the result adds up


def find_dots(ast: UOp, target: Target) -> UOp:
    """The kernel with DOT where sums of products allow it."""
    if not target.dots or not any(_is_sum(node, target) for node in ast.toposort()):
        return ast
    return separate_loops(rebuilt(ast, lambda _, new: _with_dots(new, target) if _is_sum(new, target) else new))


def _is_sum(node: UOp, target: Target) -> bool:
    lanes = node.dtype.lanes
    fits = 4 <= lanes <= target.vector_bytes // 4 and lanes & (lanes - 1) == 0
    return node.op is Ops.REDUCE and node.arg[0] is Ops.ADD and node.dtype.scalar is dtypes.int32 and fits


def _with_dots(node: UOp, target: Target) -> UOp:
    values, loops = node.src[: node.arg[1]], closed_ranges(node)
    terms: list[UOp] = []
    shifts: list[UOp] = []
    for first in range(0, len(values), GROUP):
        found, off = _dot(values[first : first + GROUP], node, target)
        terms, shifts = [*terms, *found], [*shifts, *off]
    total = _sum(node, terms, loops)
    return total - _sum(node, shifts, loops) if shifts else total


def _sum(like: UOp, values: Sequence[UOp], loops: Sequence[UOp]) -> UOp:
    return UOp(Ops.REDUCE, like.dtype, (*values, *loops), (Ops.ADD, len(values)))


def _dot(values: Sequence[UOp], node: UOp, target: Target) -> tuple[Sequence[UOp], Sequence[UOp]]:
    """The four values as one DOT, and the DOT to take off again where an operand was moved by 128; else themselves."""
    products = [product for value in values if (product := _product(value)) is not None]
    if len(products) < GROUP or len({tuple(x.dtype.scalar for x in product) for product in products}) > 1:
        return values, ()
    a, b = (side_by_side([product[n] for product in products], node.dtype.lanes) for n in (0, 1))
    if products[0][0].is_const and b.op is not Ops.LOAD:
        return values, ()  # bytes alone, and woven: for nothing
    zero, is_signed = const(node.dtype, 0), a.dtype.scalar is dtypes.int8
    for x, y in ((a, b), (b, a)):
        if (x.dtype.scalar, y.dtype.scalar) in target.dots:
            return (UOp(Ops.DOT, node.dtype, (x, y, zero)),), ()
    if a.dtype.scalar is not b.dtype.scalar or (dtypes.uint8, dtypes.int8) not in target.dots:
        return values, ()
    other = moved(a)
    by = const(other.dtype, 128 if is_signed else -128)
    first, second = ((other, b), (by, b)) if is_signed else ((b, other), (b, by))
    return (UOp(Ops.DOT, node.dtype, (*first, zero)),), (UOp(Ops.DOT, node.dtype, (*second, zero)),)


def moved(u: UOp) -> UOp:
    """u + 128 of signed bytes as unsigned ones, u - 128 of unsigned ones as signed."""
    other = dtypes.uint8 if u.dtype.scalar is dtypes.int8 else dtypes.int8
    return u.bitcast(other) ^ _HIGHEST[other]


def _product(value: UOp) -> tuple[UOp, UOp] | None:
    """The bytes that are multiplied, what is the same in all lanes first and as a scalar; a byte alone by 1."""
    value = without_mask(value)
    if value.op is Ops.CAST and (byte := _byte(value)) is not None:
        return const(dtypes.uint8 if byte.dtype.scalar is dtypes.int8 else dtypes.int8, 1), byte
    if value.op is not Ops.MUL:
        return None
    a, b = (_byte(s) for s in value.src)
    if a is None or b is None:
        return None
    return (a, b) if a.dtype.lanes <= b.dtype.lanes else (b, a)


def _byte(u: UOp) -> UOp | None:
    if u.op is Ops.BROADCAST:
        return _byte(u.src[0])
    return u.src[0] if u.op is Ops.CAST and u.src[0].dtype.scalar in BYTES else None

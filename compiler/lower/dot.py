"""Sums of four int8 products become the dot product instruction of the target.

When: between turn and reduce. Why there: the four copies of an unrolled reduce loop are values of one REDUCE, and what
`stage` packed four by four is one load from which turn picks; putting the four side by side undoes the picking, so
that nothing is left of it (`shuffle` in turn.py). Assumes: nothing; other sums stay as they are. Guarantees: a REDUCE
gets DOT values only for pairs of types in target.dots, of lanes that fill a register or part of it. Tests:
tests/compiler/lower/test_dot.py.

An instruction for unsigned by signed bytes also does other pairs: a + 128 is a with its highest bit turned, and
sum(a*b) = sum((a + 128)*b) - sum(128*b). The second sum does not change with the rows that share b, so it stands
outside of their loop; b is the operand that was packed. Sums wrap, so every step is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import DType, Ops, Target, UOp, closed_ranges, const, dtypes, rebuilt

from ..reduce_loops import separate_loops
from ..turn import shuffle, side_by_side
from .reduce import without_mask

__all__ = ["BYTES", "GROUP", "find_dots"]

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
    loops = closed_ranges(node)
    dots: list[UOp] = []
    shifts: list[UOp] = []
    values = list(node.src[: node.arg[1]])
    rest: list[UOp] = []
    for first in range(0, len(values), GROUP):
        found = _dot(values[first : first + GROUP], node, target)
        if found is None:
            rest += values[first : first + GROUP]
        else:
            dots.append(found[0])
            shifts += found[1:]
    if not dots:
        return node
    total = _sum(node, [*dots, *rest], loops)
    return total - _sum(node, shifts, loops) if shifts else total


def _sum(like: UOp, values: Sequence[UOp], loops: Sequence[UOp]) -> UOp:
    return UOp(Ops.REDUCE, like.dtype, (*values, *loops), (Ops.ADD, len(values)))


def _dot(values: Sequence[UOp], node: UOp, target: Target) -> tuple[UOp, ...] | None:
    """The four values as one DOT, and the DOT to take off again where an operand was moved by 128."""
    products = [product for value in values if (product := _product(value)) is not None]
    if len(products) < GROUP or len({tuple(x.dtype.scalar for x in product) for product in products}) > 1:
        return None
    lanes = node.dtype.lanes
    a, b = (side_by_side([product[n] for product in products], lanes) for n in (0, 1))
    zero = const(node.dtype, 0)
    pair = a.dtype.scalar, b.dtype.scalar
    if pair in target.dots:
        return (UOp(Ops.DOT, node.dtype, (a, b, zero)),)
    if pair[::-1] in target.dots:
        return (UOp(Ops.DOT, node.dtype, (b, a, zero)),)
    if pair[0] is not pair[1] or (dtypes.uint8, dtypes.int8) not in target.dots:
        return None
    moved = _moved(a)
    by = const(moved.dtype, 128 if pair[0] is dtypes.int8 else -128)
    first, second = ((moved, b), (by, b)) if pair[0] is dtypes.int8 else ((b, moved), (b, by))
    return UOp(Ops.DOT, node.dtype, (*first, zero)), UOp(Ops.DOT, node.dtype, (*second, zero))


def _moved(u: UOp) -> UOp:
    """u + 128 of signed bytes as unsigned, u - 128 of unsigned ones as signed: done while packing, if u was packed."""
    other = dtypes.uint8 if u.dtype.scalar is dtypes.int8 else dtypes.int8
    if u.op is Ops.SHUFFLE and u.src[0] is u.src[1] and u.src[0].op is Ops.LOAD:
        packed = _moved(u.src[0])
        if packed.op is Ops.LOAD:
            return shuffle(packed, packed, u.arg)
    if u.op is Ops.LOAD and u.src[0].src[0].op is Ops.AFTER and u.src[0].src[0].src[0].op is Ops.LOCAL:
        place, filled = u.src[0], u.src[0].src[0]
        local, effects, loops = filled.src[0], filled.src[1 : 1 + filled.arg], filled.src[1 + filled.arg :]
        memory = local.replace(dtype=other, arg=(f"{local.arg[0]}_moved", local.arg[1]))
        stores = [_stored_moved(effect, memory, other) for effect in effects]
        filled = UOp(Ops.AFTER, other, (memory, *stores, *loops), filled.arg)
        return UOp(Ops.LOAD, other.vec(u.dtype.lanes), (_place(place, filled, other),), u.arg)
    return u.bitcast(other) ^ _HIGHEST[other]


def _stored_moved(store: UOp, memory: UOp, other: DType) -> UOp:
    place, value = store.src
    return store.replace(src=(_place(place, memory, other), value.bitcast(other) ^ _HIGHEST[other]))


def _place(place: UOp, memory: UOp, other: DType) -> UOp:
    return UOp(Ops.INDEX, other.vec(place.dtype.lanes), (memory, *place.src[1:]))


def _product(value: UOp) -> tuple[UOp, UOp] | None:
    """The bytes that are multiplied, what is the same in all lanes first and as a scalar."""
    value = without_mask(value)
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

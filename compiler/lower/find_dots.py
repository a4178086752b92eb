"""Sums of four products of bytes, or two of bfloat16, become the dot product instruction of the target.

When: between shuffle_lanes and lower_reduces. Why there: instances of an unrolled reduce loop are values of one REDUCE,
and what `stage` packed by fours is one load from which shuffles select. Concatenating the four undoes the selection, so
that nothing is left of it (`shuffle` in shuffle_lanes.py). Assumes: nothing; other reductions are unchanged.
Guarantees: a REDUCE gets DOT values only for pairs of types in target.dots, of lanes that fill a register or a fraction
of it. Tests: tests/compiler/lower/test_find_dots.py.

An instruction for unsigned by signed bytes supports other pairs as well: a + 128 is a with its highest bit flipped, and
sum(a*b) = sum((a + 128)*b) - sum(128*b). The second sum is invariant in the rows that share b, so it is outside of
their loop. Sums wrap, so every step is exact. If b is copied, the action `bias` offsets b instead. Plain sums of bytes,
which `bias` needs, are multiplied by 1 if four neighbours are one load.

For bfloat16 a value outside of the reduction may be nan, so that nothing is multiplied there.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import DOT_SUMS, AxisKind, DType, Ops, Target, UOp, closed_ranges, const, dtypes, memory_of, rebuilt

from ..kernel.facts import step_of
from ..kernel.reduce_loops import separate_loops
from ..kernel.shuffle_lanes import side_by_side
from .lower_reduces import without_mask

__all__ = ["BYTES", "find_dots", "is_multiplied", "moved", "read_by_dots", "terms_of_a_dot"]

BYTES = (dtypes.int8, dtypes.uint8)
_HIGHEST = {dtypes.uint8: 128, dtypes.int8: -128}  # the highest bit, as a value


def find_dots(ast: UOp, target: Target) -> UOp:
    """Return the kernel with DOT where sums of products allow it."""
    if not target.dots or not any(_is_sum(node, target) for node in ast.toposort()):
        return ast
    return separate_loops(rebuilt(ast, lambda _, new: _with_dots(new, target) if _is_sum(new, target) else new))


def _is_sum(node: UOp, target: Target) -> bool:
    lanes = node.dtype.lanes
    fits = target.least_dot_lanes <= lanes <= target.vector_bytes // 4 and lanes & (lanes - 1) == 0
    is_sum = node.op is Ops.REDUCE and node.arg[0] is Ops.ADD
    return is_sum and fits and any(node.dtype.scalar is DOT_SUMS[a] for a, _ in target.dots)


def is_multiplied(a: DType, b: DType, target: Target) -> bool:
    """True if the target has DOT for such values; bytes may have either sign."""
    given, *pairs = ({dtypes.int8 if x in BYTES else x for x in pair} for pair in ((a, b), *target.dots))
    return given in pairs


def terms_of_a_dot(dtype: DType) -> int:
    """Return how many products of such values one lane of the result adds up."""
    return DOT_SUMS[dtype].size_bytes // dtype.size_bytes


def _with_dots(node: UOp, target: Target) -> UOp:
    values, loops = node.src[: node.arg[1]], closed_ranges(node)
    terms: list[UOp] = []
    shifts: list[UOp] = []
    group = next(terms_of_a_dot(a) for a, total in DOT_SUMS.items() if total is node.dtype.scalar)
    for first in range(0, len(values), group):
        found, off = _dot(values[first : first + group], group, node, target)
        terms, shifts = [*terms, *found], [*shifts, *off]
    total = _sum(node, terms, loops)
    return total - _sum(node, shifts, loops) if shifts else total


def _sum(like: UOp, values: Sequence[UOp], loops: Sequence[UOp]) -> UOp:
    return UOp(Ops.REDUCE, like.dtype, (*values, *loops), (Ops.ADD, len(values)))


def _dot(values: Sequence[UOp], group: int, node: UOp, target: Target) -> tuple[Sequence[UOp], Sequence[UOp]]:
    """The values as one DOT, and the DOT to take off again where an operand was moved by 128; else themselves."""
    products = [product for value in values if (product := _factors_of(value)) is not None]
    if len(products) < group or len({tuple(x.dtype.scalar for x in product) for product in products}) > 1:
        return values, ()
    a, b = (side_by_side([product[n] for product in products], node.dtype.lanes, target) for n in (0, 1))
    if products[0][0].is_const and b.op is not Ops.LOAD:
        return values, ()  # interleaved bytes alone cost nothing
    if a.dtype.is_float and not _is_near(a, b, products, target):
        return values, ()
    zero = const(node.dtype, 0)
    if (pair := _in_order(a, b, target)) is not None:
        return (UOp(Ops.DOT, node.dtype, (*pair, zero)),), ()
    for x, y in ((a, b), (b, a)) if a.dtype.scalar in BYTES else ():
        other = moved(x)
        by = const(other.dtype, 128 if x.dtype.scalar is dtypes.int8 else -128)
        first, second = _in_order(other, y, target), _in_order(by, y, target)
        if first is not None and second is not None:
            return (UOp(Ops.DOT, node.dtype, (*first, zero)),), (UOp(Ops.DOT, node.dtype, (*second, zero)),)
    return values, ()


def _in_order(a: UOp, b: UOp, target: Target) -> tuple[UOp, UOp] | None:
    """Return the factors in the order in which DOT takes them; None if it does not. Of 0 to 127 the sign is open."""
    for x, y in ((a, b), (b, a)):
        if (x.dtype.scalar, y.dtype.scalar) in target.dots:
            return x, y
    for x, y in ((a, b), (b, a)) if (dtypes.int8, dtypes.int8) in target.dots else ():
        if x.dtype.scalar is dtypes.uint8 and y.dtype.scalar is dtypes.int8 and x.bounds[1] < _HIGHEST[dtypes.uint8]:
            return x.bitcast(dtypes.int8), y
    return None


def moved(u: UOp) -> UOp:
    """u + 128 of signed bytes as unsigned ones, u - 128 of unsigned ones as signed."""
    other = dtypes.uint8 if u.dtype.scalar is dtypes.int8 else dtypes.int8
    return u.bitcast(other) ^ _HIGHEST[other]


def _factors_of(value: UOp) -> tuple[UOp, UOp] | None:
    """Return the two factors, the uniform one first and scalar. A single byte is multiplied by 1."""
    value = without_mask(value)
    if value.op is Ops.CAST and (byte := _narrow(value)) is not None and byte.dtype.scalar in BYTES:
        return const(dtypes.uint8 if byte.dtype.scalar is dtypes.int8 else dtypes.int8, 1), byte
    if value.op is not Ops.MUL:
        return None
    a, b = (_narrow(s) for s in value.src)
    if a is None or b is None:
        return None
    return (a, b) if a.dtype.lanes <= b.dtype.lanes else (b, a)


def _narrow(u: UOp) -> UOp | None:
    if u.op is Ops.BROADCAST:
        return _narrow(u.src[0])
    is_widened = u.op is Ops.CAST and DOT_SUMS.get(u.src[0].dtype.scalar) is u.dtype.scalar
    return u.src[0] if is_widened else None


def _is_near(a: UOp, b: UOp, products: Sequence[tuple[UOp, UOp]], target: Target) -> bool:
    """True if assembling pairs takes no longer than multiplying them. One operand is loaded as pairs. The other may be
    interleaved in registers, but not from memory that the product waits for (docs/topics/dot-products.md)."""
    if _is_read(b):
        return _is_read(a) or products[0][0].dtype.lanes > 1
    memories = [memory_of(product[1].src[0]) for product in products if product[1].op is Ops.LOAD]
    return _is_read(a) and not any(
        m.op is Ops.PARAM and target.is_streamed(m.arg[1] * m.dtype.size_bytes) for m in memories
    )


def _is_read(u: UOp) -> bool:
    """True if it is one load, or a broadcast word of adjacent values."""
    return u.op is Ops.LOAD or (u.op is Ops.SHUFFLE and u.src[0] is u.src[1] and u.src[0].op is Ops.LOAD)


def read_by_dots(order: Sequence[UOp], target: Target) -> set[UOp]:
    """Return the kernel-local buffers that DOT reads unconverted: those of products with an unrolled loop over the
    elements of a DOT, contiguous in both factors."""
    found: set[UOp] = set()
    for node in order:
        product = _factors_of(node.src[0]) if node.op is Ops.REDUCE and node.arg == (Ops.ADD, 1) else None
        if product is None or any(u.op is not Ops.LOAD for u in product):
            continue
        kinds, indices = tuple(u.dtype.scalar for u in product), [u.src[0] for u in product]
        copied = [r for r in closed_ranges(node) if r.arg[1] == AxisKind.UNROLL]
        words = [r for r in copied if r.src[0].arg % terms_of_a_dot(kinds[0]) == 0]
        if kinds in target.dots and any(all(step_of(index.src[1], r) == 1 for index in indices) for r in words):
            found.update(map(memory_of, indices))
    return found

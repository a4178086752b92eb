"""Products of bytes with a different signedness than the target's instruction: b + 128 instead of b, and a correction.

An instruction for unsigned by signed bytes (lower/find_dots.py) supports other pairs as well: sum(a*b) equals sum(a*(b
+ 128)) - 128 * sum(a). The sums of a depend on the loops of a alone and are stored, so they are computed once. b + 128
is b with its highest bit flipped, which costs nothing where b is copied anyway. Sums wrap, so every step is exact. Used
by the action `bias`. Tests: tests/compiler/optimize/test_bias.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, dtypes, make_range, substitute

from ..kernel.facts import slot_of
from ..lower.find_dots import BYTES, moved
from .staging import staged

__all__ = ["biased"]


def biased(total: UOp, slot: int, rows: Sequence[UOp], mark: str) -> tuple[UOp, dict[str, str]]:
    """Return the same sum of products with the bytes of a buffer offset, and the loops of the other operand's sums,
    which are stored over the rows.

    Raises:
        ValueError: not a sum of products of bytes, or the other operand does not depend on all rows.
    """
    product, loops = total.src[0], closed_ranges(total)
    mine = [s for s in product.src if _slot(s) == slot]
    if len(mine) > 1:  # several loads of one matrix
        mine = [s for s in mine if s.ranges.isdisjoint(rows)]
    if product.op is not Ops.MUL or total.arg != (Ops.ADD, 1) or len(mine) != 1 or total.dtype is not dtypes.int32:
        raise ValueError(f"buffer {slot} is not the byte operand of an int32 product")
    others, own = product.src[product.src[0] is mine[0]], mine[0].src[0]
    if not others.ranges.issuperset(rows):
        raise ValueError("the other factor does not depend on all of these loops")
    copies = {loop: make_range(f"{loop.arg[0]}{mark}", loop.src[0], AxisKind.REDUCE) for loop in loops}
    sums = UOp(Ops.REDUCE, total.dtype, (substitute(others, copies), *copies.values()), total.arg)
    buffer, made = staged(sums << 7, rows, f"bias{slot}", mark)
    new = total.replace(src=(others * moved(own).cast(total.dtype), *loops))
    made |= {str(loop.arg[0]): str(alone.arg[0]) for loop, alone in copies.items()}
    return new - buffer if own.dtype is dtypes.int8 else new + buffer, made


def _slot(factor: UOp) -> int | None:
    is_byte = factor.op is Ops.CAST and factor.src[0].op is Ops.LOAD and factor.src[0].dtype in BYTES
    return slot_of(factor.src[0]) if is_byte else None

"""Sums of products of bytes with another sign than the target multiplies: b + 128 instead of b, and a correction.

An instruction for unsigned by signed bytes (lower/find_dots.py) does other pairs as well: sum(a*b) is sum(a*(b + 128))
less 128 * sum(a). The sums of a change with the loops of a alone and are kept, so that they are taken once; b + 128 is
b with its highest bit flipped, which costs nothing where b is copied anyway. Sums wrap, so every step is exact. Used by
the action `bias`. Tests: tests/compiler/optimize/test_bias.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, dtypes, make_range, substitute

from ..kernel import slot_of
from ..lower.find_dots import BYTES, moved
from .staging import staged

__all__ = ["biased"]


def biased(total: UOp, slot: int, rows: Sequence[UOp], mark: str) -> tuple[UOp, dict[str, str]]:
    """The same sum of products with the bytes of a buffer moved, and the loops of the other bytes' sums, which are kept
    over the rows.

    Raises:
        ValueError: it is no sum of products of bytes, or the other bytes do not change with all rows.
    """
    product, loops = total.src[0], closed_ranges(total)
    mine = [s for s in product.src if _slot(s) == slot]
    if len(mine) > 1:  # a matrix by itself
        mine = [s for s in mine if s.ranges.isdisjoint(rows)]
    if product.op is not Ops.MUL or total.arg != (Ops.ADD, 1) or len(mine) != 1 or total.dtype is not dtypes.int32:
        raise ValueError(f"buffer {slot} is not the byte operand of an int32 product")
    others, own = product.src[product.src[0] is mine[0]], mine[0].src[0]
    if not others.ranges.issuperset(rows):
        raise ValueError("the other factor does not depend on all of these loops")
    apart = {loop: make_range(f"{loop.arg[0]}{mark}", loop.src[0], AxisKind.REDUCE) for loop in loops}
    sums = UOp(Ops.REDUCE, total.dtype, (substitute(others, apart), *apart.values()), total.arg)
    kept, made = staged(sums << 7, rows, f"bias{slot}", mark)
    new = total.replace(src=(others * moved(own).cast(total.dtype), *loops))
    made |= {str(loop.arg[0]): str(alone.arg[0]) for loop, alone in apart.items()}
    return new - kept if own.dtype is dtypes.int8 else new + kept, made


def _slot(factor: UOp) -> int | None:
    is_byte = factor.op is Ops.CAST and factor.src[0].op is Ops.LOAD and factor.src[0].dtype in BYTES
    return slot_of(factor.src[0]) if is_byte else None

"""Bytes that shifts put together to a wider number become that number: one load, read as another type.

When: after turn, before dot. Why there: bytes of neighbouring lanes are picked from vectors that were read whole, and
picking all of them side by side again is the vector itself. Assumes: the target is little-endian, as all known ones
are. Guarantees: only where nothing but a plain load is left of it; otherwise the shifts stay. Tests:
tests/compiler/lower/test_words.py.
"""

from __future__ import annotations

from kernmill.ir import Ops, Target, UOp, dtypes, rebuilt, simplify

from ..turn import side_by_side

__all__ = ["find_words"]


def find_words(ast: UOp, target: Target) -> UOp:
    """The kernel with wide loads where numbers were read byte by byte."""
    if not target.vector_bytes:
        return ast
    return rebuilt(ast, lambda _, new: (_word(new) or new) if new.op is Ops.OR and new.dtype.is_int else new)


def _word(u: UOp) -> UOp | None:
    """The bytes of a whole number as one load: in the register they lie as they do in memory."""
    parts: dict[int, UOp] = {}
    if not _collect(u, parts) or sorted(parts) != list(range(0, u.dtype.bits, 8)):
        return None
    found = _load(side_by_side([parts[shift] for shift in sorted(parts)], u.dtype.lanes))
    return None if found is None else UOp(Ops.BITCAST, u.dtype, (found,))


def _load(u: UOp) -> UOp | None:
    """The load itself, or that of the part of a longer vector that a shuffle takes."""
    if u.op is Ops.LOAD:
        return u
    whole, start = u.src[0], u.arg[0] if u.op is Ops.SHUFFLE else 0
    is_part = u.op is Ops.SHUFFLE and u.arg == tuple(range(start, start + u.dtype.lanes))
    if not is_part or whole.op is not Ops.LOAD or len(whole.src[0].src) > 2 or u.arg[-1] >= whole.dtype.lanes:
        return None
    place = whole.src[0]
    index = UOp(Ops.INDEX, u.dtype, (place.src[0], simplify(place.src[1] + start)))
    return UOp(Ops.LOAD, u.dtype, (index,), whole.arg)


def _collect(u: UOp, parts: dict[int, UOp]) -> bool:
    """The bytes below by how far they are shifted; False where there is anything else."""
    if u.op is Ops.OR:
        return all(_collect(s, parts) for s in u.src)
    by = 0
    if u.op is Ops.SHL and u.src[1].is_const:
        u, by = u.src[0], int(u.src[1].arg)
    if u.op is not Ops.CAST or u.src[0].dtype.scalar is not dtypes.uint8 or by in parts:
        return False
    parts[by] = u.src[0]
    return True

"""Load combining: a number that is assembled by shifts from bytes or halves is loaded at once as the wider type.

When: after shuffle_lanes, before find_dots. Why there: bytes of adjacent lanes are selected from vectors that were
loaded whole, and all of them together are that vector again. Assumes: a little-endian target, as all known ones are.
Guarantees: bytes are combined only if a plain load is left, or operations that all bytes share. Halves of 64 bits are
combined only if each can be computed in 32. Otherwise the shifts remain. Tests:
tests/compiler/lower/test_combine_loads.py.
"""

from __future__ import annotations

from kernmill.ir import Ops, Target, UOp, dtypes, rebuilt, simplify

from ..kernel.shuffle_lanes import merged, side_by_side

__all__ = ["combine_loads"]

_FROM_BELOW = (Ops.BROADCAST, Ops.ADD, Ops.SUB, Ops.MUL, Ops.AND, Ops.OR, Ops.XOR)  # low bits need no others


def combine_loads(ast: UOp, target: Target) -> UOp:
    """Return the kernel with wide loads where numbers were loaded byte by byte, and with interleaved halves of
    numbers."""
    if not target.vector_bytes:
        return ast
    return rebuilt(
        ast, lambda _, u: _word(u, target) or _joined(u, target) or u if u.op is Ops.OR and u.dtype.is_int else u
    )


def _joined(u: UOp, target: Target) -> UOp | None:
    """Halves of 64 bits in vectors of 32: widening both, shifting and joining them takes four times as much."""
    lanes = u.dtype.lanes
    if u.dtype.scalar.bits != 64 or not 1 < lanes <= target.most_lanes // 2:
        return None
    for high, low in (u.src, u.src[::-1]):
        is_high = high.op is Ops.SHL and high.src[1].is_const and high.src[1].arg == 32
        is_low = low.bounds[0] >= 0 and low.bounds[1] < 1 << 32
        if is_high and is_low and (below := _half(low)) and (above := _half(high.src[0])):
            mixed = merged([(half, lane) for lane in range(lanes) for half in (below, above)])
            return UOp(Ops.BITCAST, u.dtype, (mixed,))
    return None


def _half(u: UOp) -> UOp | None:
    """Return the low 32 bits of an int, computed in 32 bits; None if that costs more."""
    inner = u.src[0] if u.op is Ops.CAST and u.src[0].dtype.is_int else u
    if u.op is Ops.CONST or u.dtype.lanes == 1 or inner.dtype.scalar.bits <= 32:
        return inner.cast(dtypes.int32)
    if inner is not u:
        return _half(inner)
    parts = [part for s in u.src if u.op in _FROM_BELOW and (part := _half(s))]
    return UOp(u.op, dtypes.int32.vec(u.dtype.lanes), tuple(parts)) if parts and len(parts) == len(u.src) else None


def _word(u: UOp, target: Target) -> UOp | None:
    """Return the bytes of an int as one load: they have the same order in the register as in memory."""
    parts: dict[int, UOp] = {}
    if not _collect_bytes(u, parts) or sorted(parts) != list(range(0, u.dtype.bits, 8)):
        return None
    found = _assembled_load(side_by_side([parts[shift] for shift in sorted(parts)], u.dtype.lanes, target))
    return None if found is None else UOp(Ops.BITCAST, u.dtype, (found,))


def _assembled_load(u: UOp) -> UOp | None:
    """Return a value assembled from byte loads (or one such load), or the slice that a shuffle takes of it."""
    if all(n.op in (Ops.LOAD, Ops.CONST) or n.op.is_elementwise for n in u.toposort(lambda n: n.op is Ops.LOAD)):
        return u
    whole, start = u.src[0], u.arg[0] if u.op is Ops.SHUFFLE else 0
    is_part = u.op is Ops.SHUFFLE and u.arg == tuple(range(start, start + u.dtype.lanes))
    if not is_part or whole.op is not Ops.LOAD or whole.src[0].gate is not None or u.arg[-1] >= whole.dtype.lanes:
        return None
    address = whole.src[0]
    index = UOp(Ops.INDEX, u.dtype, (address.src[0], simplify(address.src[1] + start)))
    return UOp(Ops.LOAD, u.dtype, (index,), whole.arg)


def _collect_bytes(u: UOp, parts: dict[int, UOp]) -> bool:
    """Collect the bytes below by their shift; False if there is anything else."""
    if u.op is Ops.OR:
        return all(_collect_bytes(s, parts) for s in u.src)
    u, by = (u.src[0], int(u.src[1].arg)) if u.op is Ops.SHL and u.src[1].is_const else (u, 0)
    if u.op is not Ops.CAST or u.src[0].dtype.scalar is not dtypes.uint8 or by in parts:
        return False
    parts[by] = u.src[0]
    return True

"""Where gathers are slow, a gather by indices that come from plain loads becomes one scalar load per lane.

When: after combine_loads and lookup_in_registers. Why there: a lane is a slice of one load, and lookups in registers
are no longer gathers. A gather takes its indices out of a vector again, and many CPUs are slow at it. One with the fix
for Downfall takes 28 cycles for 16 entries, where sixteen loads take 8 (`Target.has_gathers`). An index in memory
becomes an address without a vector. Assumes: nothing. Guarantees: the same entries; indices that are gathered
themselves, or have gates, stay in a vector. Why: docs/topics/quantized-layouts.md. Tests:
tests/compiler/lower/test_scalarize_gathers.py.
"""

from __future__ import annotations

from kernmill.ir import Ops, Target, UOp, const, rebuilt, simplify

__all__ = ["scalarize_gathers"]

_MOST_STEPS = 4  # operations from numbers in memory to an index: each is an instruction for every lane


def scalarize_gathers(ast: UOp, target: Target) -> UOp:
    """Return the kernel with scalar loads instead of such gathers."""
    if not target.vector_bytes or target.has_gathers:
        return ast
    return rebuilt(ast, lambda _, new: _entries(new) if new.op is Ops.LOAD and _is_near(new) else new)


def _is_near(load: UOp) -> bool:
    """True if a gather's indices are a few operations from contiguous loads."""
    index = load.src[0]
    wide = [u for u in index.src[1].toposort() if u.dtype.lanes > 1]
    steps = [u for u in wide if u.op.is_elementwise and u.op is not Ops.BITCAST]
    is_gather = index.src[1].dtype.lanes > 1 and any(u.op is Ops.LOAD for u in wide)
    is_plain = is_gather and index.gate is None and not load.dtype.is_bool
    return is_plain and len(steps) <= _MOST_STEPS and all(map(_is_known, wide))


def _is_known(u: UOp) -> bool:
    if u.op is Ops.LOAD:
        return u.src[0].src[1].dtype.lanes == 1 and u.src[0].gate is None and not u.dtype.is_bool
    if u.op is Ops.BITCAST and u.src[0].dtype.lanes != u.dtype.lanes:
        return u.src[0].op is Ops.LOAD and u.src[0].dtype.lanes > u.dtype.lanes
    return not u.dtype.is_bool and (u.op.is_elementwise or u.op in (Ops.CONST, Ops.BROADCAST, Ops.SHUFFLE, Ops.INDEX))


def _entries(load: UOp) -> UOp:
    (memory, numbers), scalar = load.src[0].src, load.dtype.scalar
    addresses = [(memory, simplify(_lane(numbers, lane, 1))) for lane in range(load.dtype.lanes)]
    return UOp(Ops.LANES, load.dtype, tuple([UOp(Ops.LOAD, scalar, (UOp(Ops.INDEX, scalar, at),)) for at in addresses]))


def _lane(u: UOp, lane: int, count: int) -> UOp:
    """Return `count` lanes from this one on; more than one only of a load."""
    if u.op is Ops.CONST:
        return const(u.dtype.scalar, u.arg[lane] if isinstance(u.arg, tuple) else u.arg)
    if u.op is Ops.BROADCAST:
        return u.src[0]
    if u.op is Ops.SHUFFLE:
        number, pick = divmod(u.arg[lane], u.src[0].dtype.lanes)
        return _lane(u.src[number], pick, 1)
    if u.op is Ops.LOAD:
        memory, first = u.src[0].src
        at = UOp(Ops.INDEX, u.dtype.scalar.vec(count), (memory, simplify(first + lane)))
        return UOp(Ops.LOAD, at.dtype, (at,))
    parts = [s.dtype.lanes // u.dtype.lanes for s in u.src]
    return UOp(u.op, u.dtype.scalar, tuple([_lane(s, lane * n, n) for s, n in zip(u.src, parts, strict=True)]), u.arg)

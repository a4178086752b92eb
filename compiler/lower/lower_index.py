"""Index expressions get a machine type, and an order that leaves little to compute in inner loops.

When: last before linearize. Why there: after this the laws of unbounded integers no longer hold (a machine int wraps),
so no simplification may follow. Guarantees: no dtype index is left; an address is (outer loops) + (inner loops) +
constant, so that everything but the last steps is computed outside the inner loop. Tests:
tests/compiler/lower/test_lower_index.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernmill.ir import DType, Ops, UOp, const, dtypes, from_linear, linear

__all__ = ["lower_index"]


def lower_index(ast: UOp, depth: Mapping[UOp, int]) -> UOp:
    """Return the kernel with 64-bit loop variables and addresses; `depth` is the nesting depth of each loop."""
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        is_sum = node.dtype is dtypes.index and node.op in (Ops.ADD, Ops.MUL, Ops.SUB)
        done[node] = _typed(_by_depth(node, depth) if is_sum else _lane_compare(node), done)
    return done[ast]


def _typed(node: UOp, done: dict[UOp, UOp]) -> UOp:
    if node in done:
        return done[node]
    src = tuple([done[s] if s in done else _typed(s, done) for s in node.src])
    dtype: DType = dtypes.int64.vec(node.dtype.lanes) if node.dtype.is_index else node.dtype
    if node.op in (Ops.MAX, Ops.MIN) and dtype is not node.dtype:  # until here its bounds were those of a clamp
        a, b = src
        done[node] = (b < a if node.op is Ops.MAX else a < b).where(a, b)
        return done[node]
    done[node] = node if src == node.src and dtype is node.dtype else UOp(node.op, dtype, src, node.arg)
    return done[node]


def _by_depth(node: UOp, depth: Mapping[UOp, int]) -> UOp:
    """Order a sum: terms of outer loops first, the constant last."""
    terms, offset = linear(node)
    levels: dict[int, dict[UOp, int]] = {}
    for atom, factor in terms.items():
        level = max((depth.get(r, 0) for r in atom.ranges), default=-1)
        levels.setdefault(level, {})[atom] = factor
    parts = [from_linear(levels[level], 0, node.dtype) for level in sorted(levels)]
    if offset or not parts:
        parts.append(const(node.dtype, offset))
    return sum(parts[1:], parts[0])


def _lane_compare(node: UOp) -> UOp:
    """lanes + base < limit as narrow lanes against one scalar: lanes < limit - base, in 32 bits; so with <= and >."""
    if node.op not in (Ops.LT, Ops.LE) or node.src[0].dtype.lanes == 1 or not node.src[0].dtype.is_index:
        return node
    first, second = (_lanes_and_rest(s) for s in node.src)
    if first is None or second is None:
        return node
    (left, a), (right, b) = first, second
    lanes = left or right
    if lanes is None or (left is not None and right is not None):
        return node
    if max(lanes.arg) >= 2**31 - 1 or min(lanes.arg) <= -(2**31):
        return node
    if node.op is Ops.LE:
        b = b + 1
    width, narrow = node.src[0].dtype.lanes, const(dtypes.int32.vec(node.src[0].dtype.lanes), lanes.arg)
    if left is not None:
        limit = _clamped(b - a, min(lanes.arg), max(lanes.arg) + 1)
        return narrow < UOp(Ops.BROADCAST, dtypes.int32.vec(width), (limit,))
    limit = _clamped(a - b, min(lanes.arg) - 1, max(lanes.arg))
    return UOp(Ops.BROADCAST, dtypes.int32.vec(width), (limit,)) < narrow


def _lanes_and_rest(u: UOp) -> tuple[UOp | None, UOp] | None:
    """Split a vector of indices into constant lanes (None: all equal) plus a scalar; None if it has a different
    form."""
    if u.op is Ops.BROADCAST:
        return None, u.src[0]
    if u.op is Ops.CONST:
        scalar = const(u.dtype.scalar, 0)
        return (u, scalar) if isinstance(u.arg, tuple) else (None, scalar.like(u.arg))
    if u.op is not Ops.ADD:
        return None
    for lanes, rest in (u.src, u.src[::-1]):
        if lanes.op is Ops.CONST and isinstance(lanes.arg, tuple) and rest.op is Ops.BROADCAST:
            return lanes, rest.src[0]
    return None


def _clamped(u: UOp, least: int, most: int) -> UOp:
    return (u < least).where(least, (u < most).where(u, most)).cast(dtypes.int32)

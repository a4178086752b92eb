"""Vectorization: VECTOR loops become vector values.

When: after expand_loops. Why there: after unrolling each index has one value per lane, so its stride from lane to lane
is known. Assumes: a value depends on at most one VECTOR loop. Guarantees: no VECTOR range is left; contiguous loads and
stores have a vector dtype and a scalar index (of lane 0); others have a vector of indices (shuffle_lanes.py handles
these). Tests: tests/compiler/kernel/test_vectorize.py.
"""

from __future__ import annotations

from kernmill.ir import AxisKind, InternalError, OpGroup, Ops, UOp, closed_ranges, const, from_linear, linear, simplify

from .facts import combined

__all__ = ["vectorize"]


def vectorize(ast: UOp) -> UOp:
    """The kernel with explicit vectors."""
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        done[node] = _vector(node, tuple(done[s] for s in node.src), done)
    return simplify(done[ast])


def _lanes_of(node: UOp) -> UOp | None:
    loops = [r for r in node.ranges if r.arg[1] == AxisKind.VECTOR]
    if len(loops) > 1:
        raise InternalError(f"vectorize: {node!r} changes with {len(loops)} vector loops")
    return loops[0] if loops else None


def _vector(node: UOp, src: tuple[UOp, ...], done: dict[UOp, UOp]) -> UOp:
    if node.op is Ops.RANGE and node.arg[1] == AxisKind.VECTOR:
        lanes = int(node.src[0].arg)
        return const(node.dtype.vec(lanes), tuple(range(lanes)))
    if closed_ranges(node) or node.op is Ops.REDUCE:
        return _close(node, src)
    if node.op is Ops.INDEX:
        return _vectorized_index(node, src, done)
    if src == node.src or node.op is Ops.MMA:
        return node.replace(src=src)
    lanes = max(s.dtype.lanes for s in src)
    if node.op is Ops.LOAD:
        lanes = max(lanes, src[0].src[1].dtype.lanes)
        return node.replace(dtype=node.dtype.vec(lanes), src=src)
    if node.op is Ops.STORE:
        lanes = max(lanes, src[0].src[1].dtype.lanes)
        return node.replace(src=(src[0], spread(src[1], lanes)))
    if lanes > 1 and (node.op.is_elementwise or node.op.group is OpGroup.VECTOR):
        return UOp(node.op, node.dtype.vec(lanes), tuple(spread(s, lanes) for s in src), node.arg)
    return node.replace(src=src)


def spread(u: UOp, lanes: int) -> UOp:
    """Broadcast a scalar to every lane; a vector is unchanged."""
    if u.dtype.lanes == lanes:
        return u
    return const(u.dtype.vec(lanes), u.arg) if u.op is Ops.CONST else UOp(Ops.BROADCAST, u.dtype.vec(lanes), (u,))


def _vectorized_index(node: UOp, src: tuple[UOp, ...], done: dict[UOp, UOp]) -> UOp:
    """Vectorize an INDEX: contiguous over the lanes (scalar index, vector dtype), or a vector of indices."""
    loop = _lanes_of(node)
    if loop is None:
        return node.replace(src=src)
    lanes = int(loop.src[0].arg)
    gate = tuple(spread(g, lanes) for g in src[2:])
    terms, offset = linear(node.src[1])
    apart = {atom for atom in terms if loop in atom.ranges}
    if apart == {loop} and terms[loop] == 1:
        rest = {done.get(atom, atom): k for atom, k in terms.items() if atom is not loop}
        first = simplify(from_linear(rest, offset, node.src[1].dtype))
        return node.replace(dtype=node.dtype.vec(lanes), src=(src[0], first, *gate))
    return node.replace(src=(src[0], spread(src[1], lanes), *gate))  # or one index, with a gate that differs


def _close(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """Vectorize a REDUCE over lanes: a vector of partial results, reduced horizontally at the end."""
    closed = closed_ranges(node)
    first = len(node.src) - len(closed)
    lanes_loop = next((r for r in closed if r.arg[1] == AxisKind.VECTOR), None)
    loops = tuple(new for old, new in zip(closed, src[first:], strict=True) if old is not lanes_loop)
    if node.op is Ops.AFTER:
        return node.replace(src=(*src[:first], *loops))
    lanes = max(v.dtype.lanes for v in src[:first]) if lanes_loop is None else int(lanes_loop.src[0].arg)
    values = tuple(spread(v, lanes) for v in src[:first])
    op = node.arg[0]
    if loops or not closed:
        result = UOp(Ops.REDUCE, node.dtype.vec(lanes), (*values, *loops), node.arg)
    else:
        result = combined(op, values)
    return result if lanes_loop is None else UOp(Ops.FOLD, node.dtype, (result,), op)

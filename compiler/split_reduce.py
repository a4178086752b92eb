"""A reduction of much to little becomes two: first to some hundred partial results, then those to the end.

When: before fusion. Why there: both halves are ordinary kernels, the first with enough rows for all threads. The cut
depends on the shape alone, so the result is the same for any number of threads. Tests:
tests/compiler/test_split_reduce.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import Op, Ops, UOp, expand, iota, numel, pad, permute, rebuilt, reduce_axes, reshape

from .kernel import neutral_element

__all__ = ["split_reduces"]

_PARTS = 64  # partial results per output
_MIN_INNER = 2048  # elements folded into one partial result, at least
_MAX_OUTPUTS = 16  # with more outputs than this there are rows enough already


def split_reduces(roots: Sequence[UOp]) -> list[UOp]:
    """The same graph, long reductions to few outputs in two steps."""
    sink = UOp(Ops.SINK, roots[0].dtype, tuple(roots))
    return list(rebuilt(sink, lambda node, new: _split(node, new) if node.op is Ops.REDUCE else new).src)


def _split(node: UOp, new: UOp) -> UOp:
    """The reduction `node`, on changed sources `new`, in two steps if it is long."""
    (op, axes), (source,) = node.arg, new.src
    outputs, total = numel(node.shape), numel(source.shape)
    if not isinstance(total, int) or not isinstance(outputs, int) or outputs == 0:
        return new
    length = total // outputs
    if outputs > _MAX_OUTPUTS or length < _PARTS * _MIN_INNER:
        return new
    kept = [axis for axis in range(len(source.shape)) if axis not in axes]
    apart = permute(source, [*kept, *axes])
    parts, (first, *others) = _PARTS, apart.shape[len(kept) :]
    whole = next((n for n in (*range(parts, 2 * parts), *range(parts, parts // 2, -1)) if first % n == 0), 0)
    if whole:  # axes that do not lie one behind the other stay apart
        parts = whole
        cut = reshape(apart, (outputs, parts, first // parts, *others))
    else:
        flat, inner = reshape(apart, (outputs, length)), -(-length // parts)
        if inner * parts != length:
            flat = _padded(flat, op, length, inner * parts)
        cut = reshape(flat, (outputs, parts, inner))
    partial = reshape(reduce_axes(cut, op, tuple(range(2, len(cut.shape)))), (outputs, parts))
    stored = UOp(Ops.CONTIGUOUS, partial.dtype, (partial,))
    return reshape(reduce_axes(stored, op, (1,)), node.shape)


def _padded(flat: UOp, op: Op, length: int, wanted: int) -> UOp:
    """More elements at the end of axis 1 that do not change the result."""
    padded = pad(flat, ((0, 0), (0, wanted - length)))
    inside = expand(reshape(iota(wanted) < length, (1, wanted)), padded.shape)
    return padded if op in (Ops.ADD, Ops.OR, Ops.XOR) else inside.where(padded, neutral_element(op, flat))

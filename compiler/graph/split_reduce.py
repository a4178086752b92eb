"""Split reductions: a large reduction to few results becomes two, with about 64 partial results per output in between.

A sum over an ADD tree of more than 64 leaves becomes several reductions.

When: before fusion. Why there: both halves are ordinary kernels, the first with enough rows for all threads. The split
depends on the shape alone, so the result is the same for any number of threads. Tests:
tests/compiler/graph/test_split_reduce.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kernmill.ir import Op, Ops, UOp, expand, iota, numel, pad, permute, rebuilt, reduce_axes, reshape

from ..kernel.facts import combined, neutral_element

__all__ = ["split_reduce"]

_PARTS = 64  # partial results per output
_MIN_INNER = 2048  # a reduction is split from _PARTS times this many elements on
_MOST_TERMS = 64  # leaves of an ADD tree in one reduction; each may read its own buffer, which costs code
_MAX_OUTPUTS = 16  # with more outputs than this there are rows enough already


def split_reduce(roots: Sequence[UOp]) -> list[UOp]:
    """The same graph, long reductions to few outputs in two steps."""
    sink = UOp(Ops.SINK, roots[0].dtype, tuple(roots))
    readers = Counter(s for node in sink.toposort() if node.op is not Ops.SINK for s in node.src)

    def change(node: UOp, new: UOp) -> UOp:
        if node.op is not Ops.REDUCE:
            return new
        terms = _terms(node.src[0], new.src[0], readers) if node.arg[0] is Ops.ADD else []
        if len(terms) <= _MOST_TERMS:
            return _split_reduction(node, new)
        groups = [terms[n : n + _MOST_TERMS] for n in range(0, len(terms), _MOST_TERMS)]
        sums = [new.replace(src=(combined(Ops.ADD, group),)) for group in groups]
        return combined(Ops.ADD, [_split_reduction(node, part) for part in sums])

    return list(rebuilt(sink, change).src)


def _terms(old: UOp, new: UOp, readers: Mapping[UOp, int]) -> list[UOp]:
    """Return the terms of `new` in order. It has the structure of `old`; an ADD of it with other readers is a term."""
    terms: list[UOp] = []
    waiting = [(old, new)]
    while waiting:
        old, new = waiting.pop()
        if old.op is new.op is Ops.ADD and readers[old] == 1:
            waiting += [*zip(old.src, new.src, strict=True)][::-1]
        else:
            terms.append(new)
    return terms


def _split_reduction(node: UOp, new: UOp) -> UOp:
    """The reduction `node`, on changed sources `new`, in two steps if it is long."""
    (op, axes), (source,) = node.arg, new.src
    outputs, total = numel(node.shape), numel(source.shape)
    if not isinstance(total, int) or not isinstance(outputs, int) or outputs == 0:
        return new
    length = total // outputs
    if outputs > _MAX_OUTPUTS or length < _PARTS * _MIN_INNER:
        return new
    kept = [axis for axis in range(len(source.shape)) if axis not in axes]
    permuted = permute(source, [*kept, *axes])
    parts, (first, *others) = _PARTS, permuted.shape[len(kept) :]
    dividing_parts = next((n for n in (*range(parts, 2 * parts), *range(parts, parts // 2, -1)) if first % n == 0), 0)
    if dividing_parts:  # axes that are not adjacent stay separate
        parts = dividing_parts
        blocked = reshape(permuted, (outputs, parts, first // parts, *others))
    else:
        flat, inner = reshape(permuted, (outputs, length)), -(-length // parts)
        if inner * parts != length:
            flat = _padded_with_neutral(flat, op, length, inner * parts)
        blocked = reshape(flat, (outputs, parts, inner))
    partial = reshape(reduce_axes(blocked, op, tuple(range(2, len(blocked.shape)))), (outputs, parts))
    stored = UOp(Ops.CONTIGUOUS, partial.dtype, (partial,))
    result = reshape(reduce_axes(stored, op, (1,)), node.shape)
    for part in result.toposort(stop=lambda below: below is source):
        part.origin = part.origin or node.origin  # both kernels have its source line and its pin
    return result


def _padded_with_neutral(flat: UOp, op: Op, length: int, wanted: int) -> UOp:
    """More elements at the end of axis 1 that do not change the result."""
    padded = pad(flat, ((0, 0), (0, wanted - length)))
    inside = expand(reshape(iota(wanted) < length, (1, wanted)), padded.shape)
    return padded if op in (Ops.ADD, Ops.OR, Ops.XOR) else inside.where(padded, neutral_element(op, flat))

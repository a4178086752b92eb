"""Movement ops become index arithmetic: from an index into a node's output to the index into each source.

When: inside `fuse`, once for every use of a node by a kernel. Why there: only indices tell whether two consumers read
the same element. Assumes: shapes were checked when the graph was built. Guarantees: every index is simplified; an index
that may be out of bounds has a gate that is false there. Loops of all kernels have the same names, so that the second
of two equal layers finds its indices cached (`IndexMap`). Tests: tests/compiler/graph/test_rangeify.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeAlias

from kernmill.ir import Op, Ops, Shape, Size, UOp, as_size, const, dtypes, index_const, row_strides, simplify

__all__ = ["TRUE", "IndexMap", "Use", "flat_index"]

TRUE = const(dtypes.bool, True)
Indices: TypeAlias = "tuple[UOp, ...]"


class Use(NamedTuple):
    """One use of a node: the kernel, the index, and the condition."""

    kernel: int
    indices: Indices
    gate: UOp


class IndexMap:
    """Index arithmetic of one graph, each piece done once."""

    def __init__(self) -> None:
        self.flat = cache(flat_index)
        self._sources = cache(_source_index)

    def moved(self, node: UOp, use: Use) -> Use:
        """Return the index into the source of a movement op for an index into its output."""
        shapes = node.shape, node.src[0].shape
        return Use(use.kernel, *self._sources(node.op, node.arg, shapes, use.indices, use.gate))


def flat_index(index: Indices, shape: Shape) -> UOp:
    """Return the row-major position of an index."""
    terms = (i * stride for i, stride in zip(index, row_strides(shape), strict=True))
    return simplify(sum(terms, index_const(0)))


def _source_index(op: Op, arg: Any, shapes: tuple[Shape, Shape], indices: Indices, gate: UOp) -> tuple[Indices, UOp]:
    """Return index and gate for the source of a movement op; `shapes` are those of its output and of that source."""
    (shape, source), inside = shapes, TRUE
    match op:
        case Ops.RESHAPE:
            index = _reshaped(indices, shape, source)
        case Ops.EXPAND:
            index = [index_const(0) if size == 1 else i for i, size in zip(indices, source, strict=True)]
        case Ops.PERMUTE:
            index = [indices[arg.index(axis)] for axis in range(len(source))]
        case Ops.SHRINK:
            index = [i + start for i, (start, _) in zip(indices, arg, strict=True)]
        case Ops.STRIDE:
            index = [i * step if step > 0 else (index_const(size) - 1) + i * step
                     for i, (step, _), size in zip(indices, arg, source, strict=True)]  # fmt: skip
        case Ops.PAD:
            index, inside = _padded(arg, indices, source)
        case Ops.WINDOW:
            axis, _, stride, dilation, _ = arg
            index = [*indices[:-1]]
            index[axis] = index[axis] * stride + indices[-1] * dilation
        case _:
            index, inside = _unwound(arg, indices, source)
    return tuple(simplify(i) for i in index), gate if inside is TRUE else simplify(gate & inside)


def _reshaped(index: Indices, shape: Shape, source: Shape) -> list[UOp]:
    """Group by group: runs of axes with equal products on both sides are independent of each other."""
    result: list[UOp] = []
    a = b = 0
    while a < len(shape) or b < len(source):
        first_a, first_b = a, b
        have: Size = 1
        want: Size = 1
        while True:
            is_known = isinstance(have, int) and isinstance(want, int)
            is_behind = a == first_a or not is_known or have <= want
            if a < len(shape) and (is_behind or b == len(source)):
                have, a = as_size(have * shape[a]), a + 1
            elif b < len(source):
                want, b = as_size(want * source[b]), b + 1
            else:
                break
            if a > first_a and b > first_b and have == want:
                break
        result += _regrouped(index[first_a:a], shape[first_a:a], source[first_b:b])
    return result


def _regrouped(index: Indices, shape: Shape, source: Shape) -> list[UOp]:
    if shape == source:
        return list(index)
    flat = flat_index(index, shape)
    result: list[UOp] = []
    for axis, (size, stride) in enumerate(zip(source, row_strides(source), strict=True)):
        at = flat // stride if stride != 1 else flat
        at = at if all(s == 1 for s in source[:axis]) else at % size
        result.append(index_const(0) if size == 1 else simplify(at))
    return result


def _padded(arg: Any, index: Indices, source: Shape) -> tuple[list[UOp], UOp]:
    result, gate = [], TRUE
    for i, (before, length), size in zip(index, arg, source, strict=True):
        at = i - before
        if before != 0:
            gate = gate & (i >= before)
        if as_size(before + size) != length:
            gate = gate & (at < size)
        result.append(at)
    return result, gate


def _unwound(arg: Any, index: Indices, source: Shape) -> tuple[list[UOp], UOp]:
    """i = o*stride + k*dilation solved for o, where it has a solution inside."""
    axis, _, stride, dilation = arg
    distance = index[axis] - index[-1] * dilation
    at = distance // stride if stride > 1 else distance
    gate = (distance >= 0) & (at < source[axis])
    if stride > 1:
        gate = gate & (distance % stride).eq(0)
    result = list(index)
    result[axis] = at
    return result, gate

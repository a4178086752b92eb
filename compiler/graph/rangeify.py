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
Place: TypeAlias = "tuple[UOp, ...]"


class Use(NamedTuple):
    """One use of a node: the kernel, the index, and the condition."""

    kernel: int
    place: Place
    gate: UOp


class IndexMap:
    """Index arithmetic of one graph, each piece done once."""

    def __init__(self) -> None:
        self.flat = cache(flat_index)
        self._sources = cache(_source_index)

    def moved(self, node: UOp, use: Use) -> Use:
        """Return the index into the source of a movement op for an index into its output."""
        shapes = node.shape, node.src[0].shape
        return Use(use.kernel, *self._sources(node.op, node.arg, shapes, use.place, use.gate))


def flat_index(index: Place, shape: Shape) -> UOp:
    """Return the row-major position of an index."""
    terms = (i * stride for i, stride in zip(index, row_strides(shape), strict=True))
    return simplify(sum(terms, index_const(0)))


def _source_index(op: Op, arg: Any, shapes: tuple[Shape, Shape], place: Place, gate: UOp) -> tuple[Place, UOp]:
    """Return index and gate for the source of a movement op; `shapes` are those of its output and of that source."""
    (shape, source), inside = shapes, TRUE
    match op:
        case Ops.RESHAPE:
            index = _reshaped(place, shape, source)
        case Ops.EXPAND:
            index = [index_const(0) if size == 1 else i for i, size in zip(place, source, strict=True)]
        case Ops.PERMUTE:
            index = [place[arg.index(axis)] for axis in range(len(source))]
        case Ops.SHRINK:
            index = [i + start for i, (start, _) in zip(place, arg, strict=True)]
        case Ops.STRIDE:
            index = [i * step if step > 0 else (index_const(size) - 1) + i * step
                     for i, (step, _), size in zip(place, arg, source, strict=True)]  # fmt: skip
        case Ops.PAD:
            index, inside = _padded(arg, place, source)
        case Ops.WINDOW:
            axis, _, stride, dilation, _ = arg
            index = [*place[:-1]]
            index[axis] = index[axis] * stride + place[-1] * dilation
        case _:
            index, inside = _unwound(arg, place, source)
    return tuple(simplify(i) for i in index), gate if inside is TRUE else simplify(gate & inside)


def _reshaped(index: Place, shape: Shape, source: Shape) -> list[UOp]:
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


def _regrouped(index: Place, shape: Shape, source: Shape) -> list[UOp]:
    if shape == source:
        return list(index)
    flat = flat_index(index, shape)
    result: list[UOp] = []
    for axis, (size, stride) in enumerate(zip(source, row_strides(source), strict=True)):
        place = flat // stride if stride != 1 else flat
        place = place if all(s == 1 for s in source[:axis]) else place % size
        result.append(index_const(0) if size == 1 else simplify(place))
    return result


def _padded(arg: Any, index: Place, source: Shape) -> tuple[list[UOp], UOp]:
    result, gate = [], TRUE
    for i, (before, length), size in zip(index, arg, source, strict=True):
        place = i - before
        if before != 0:
            gate = gate & (i >= before)
        if as_size(before + size) != length:
            gate = gate & (place < size)
        result.append(place)
    return result, gate


def _unwound(arg: Any, index: Place, source: Shape) -> tuple[list[UOp], UOp]:
    """i = o*stride + k*dilation solved for o, where it has a solution inside."""
    axis, _, stride, dilation = arg
    distance = index[axis] - index[-1] * dilation
    place = distance // stride if stride > 1 else distance
    gate = (distance >= 0) & (place < source[axis])
    if stride > 1:
        gate = gate & (distance % stride).eq(0)
    result = list(index)
    result[axis] = place
    return result, gate

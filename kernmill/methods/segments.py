"""Gathering rows at computed indices, adding rows at computed indices, and the last row for each index.

Gathering and adding are each other's gradient. The entries of an index are found

- by comparing every index with every entry, in the kernel that adds them. For many entries, the compiler inverts that
  kernel: each entry is added to the element at its index, one after another (compiler/optimize/scatter.py);
- by sorting the entries with their indices, if initializing all elements takes longer, and on GPUs. Then those of an
  index are contiguous, and a search finds their first. A tree has the sums of 2, 4, 8, .. of them; a run of entries
  consists of at most two nodes of each level. So a sum contains only entries of its index, none is longer than
  necessary, and its order is that of the entries.

Results computed by sorting define their gradient themselves: the rules of their nodes would sort once for each of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kernmill.ir import DType, Op, Ops, Size, UOp, device_of, dtypes, expand, iota, numel, reshape, take
from kernmill.runtime import get_device

from ..lazy import KNOWN, accumulator
from .elementwise import choose
from .sorting import Sortable

__all__ = ["added", "is_long", "last_named", "looked_up"]

_FEW = 4  # entries that are compared with every index while its sum is written
_BRIEF = 1 << 16  # comparisons in the time of a kernel
_PARTS = 64  # slices of the entries, with a table of sums each
_TABLE = 4  # entries for each sum of a table; with fewer, initializing it costs more than it saves
_LEAST = 2048  # entries of a slice
_KEY = 160  # numbers that one thread fills, in the time in which an entry is sorted
_TREE = 4  # in which a number is added to the tree
_NODE = 10  # and in which an index finds its nodes there
_SHORT = 1 << 24  # comparisons in the time of the kernels of a sort
_SORT = 1  # times log2(count) squared: comparisons in the time in which an entry is sorted
_NODES = 24  # comparisons in the time in which an entry is added to the tree

Rows = TypeVar("Rows", bound=Sortable)


def is_long(count: Size, segments: Size, depth: Size, rows: Size = 1) -> bool:
    """True if these entries, of each row, are too many to be compared with all indices while a sum is read."""
    if not (isinstance(count, int) and isinstance(segments, int) and isinstance(depth, int) and isinstance(rows, int)):
        return False  # known at launch only
    return not (count <= _FEW or rows * count * segments * depth <= _BRIEF)


def is_sorted(index: Sortable, segments: Size, depth: Size) -> bool:
    """True if its entries are better sorted: few for many indices, all of which one thread would initialize before;
    or many for work-items, which would wait for one another."""
    rows, count = index.node_shape
    if not is_long(count, segments, depth, rows):
        return False
    assert isinstance(count, int)
    if not get_device(device_of(index.uop)).target.group_items:
        return bool(segments * (depth - _NODE) > count * (_KEY + _TREE * depth))
    is_more = segments * depth > _SORT * count.bit_length() ** 2 + _NODES * depth
    return bool(is_more and rows * count * segments * depth > _SHORT)


def _is_linear(node: UOp, source: UOp, adjoint: Callable[[Sortable], Sortable]) -> None:
    """Register the gradient of a node. The source of a reshape is used: a reshape of a reshape skips the first one."""
    while source.op is Ops.RESHAPE and not source.own:
        source = source.src[0]
    shape, result = source.shape, node.shape
    while node.op is Ops.RESHAPE and not node.own:
        node = node.src[0]
    KNOWN[node] = source, lambda _, __, grad: reshape(adjoint(Sortable._make(reshape(grad, result))).uop, shape)


def looked_up(x: Rows, index: Rows) -> Rows:
    """Return out[b, n] = x[b, index[b, n]].

    Shapes: (rows, segments, ..), (rows, count) -> (rows, count, ..).
    """
    rows, segments = x.node_shape[:2]
    flat = index.add(_starts(index, rows, segments)) if rows != 1 else index
    merged = reshape(x.uop, (numel((rows, segments)), *x.node_shape[2:]))
    result = x._result(take(merged, flat.uop, 0), flat)
    if x.dtype.is_float:
        own = index.uop  # not a tensor: the registered gradient keeps none alive
        _is_linear(result.uop, x.uop, lambda grad: added(grad, Sortable._make(own), segments))
    return result


def added(x: Rows, index: Rows, segments: Size, op: Op = Ops.ADD) -> Rows:
    """Return out[b, p] = the sum of x[b, n] where index[b, n] = p, 0 for no entries; half types added in float32.

    MUL, MAX and MIN give 1, the least and the greatest value for no entries. They always compare.
    Shapes: (rows, count, depth), (rows, count) -> (rows, segments, depth).
    """
    rows, count, depth = x.node_shape
    if op is Ops.ADD and is_sorted(index, segments, depth):
        result = _added_sorted(x, _sorted(index, segments), segments).cast(x.dtype)
    else:
        result = _compared(op, x.cast(accumulator(x.dtype)), index, segments).cast(x.dtype)
    if x.dtype.is_float and is_long(count, segments, depth, rows):
        own, values = index.uop, x.uop
        if op is Ops.ADD:
            _is_linear(result.uop, values, lambda grad: looked_up(grad, Sortable._make(own)))
        else:
            _is_linear(result.uop, values, lambda grad: _of_factors(grad, values, Sortable._make(own), segments))
    return result


def _of_factors(grad: Sortable, values: UOp, index: Sortable, segments: Size) -> Sortable:
    """The gradient of products for each factor: the product of the other factors, right where factors are 0."""
    x = Sortable._make(values)
    x = x.cast(accumulator(x.dtype))
    is_zero = x.eq(0)
    factor = choose(is_zero, x._filled(1), x)
    zeros = looked_up(added(choose(is_zero, x._filled(1), x._filled(0)), index, segments), index)
    product = looked_up(added(factor, index, segments, Ops.MUL), index)
    others = choose(zeros.eq(is_zero.cast(x.dtype)), product.div(factor), x._filled(0))
    return looked_up(grad, index).mul(others.cast(grad.dtype))


def last_named(x: Rows, index: Rows, segments: Size) -> tuple[Rows, Rows]:
    """Return for each index in range(segments) whether `index` contains it, and x at the last entry that does.

    Shapes: (rows, count, depth), (rows, count) -> (rows, segments), (rows, segments, depth).
    """
    rows, count = index.node_shape
    entry = _numbers(index, count, index.dtype)
    if is_sorted(index, segments, 1):
        runs = _sorted(index, segments)
        end = index._make(runs.end(segments).uop)
        found = end.gt(index._make(runs.first(segments).uop))
        entries = index._make(runs.entry.uop)
        last = _at(entries, end.sub(1).maximum(0)).cast(index.dtype).sub(_starts(index, rows, count))
    else:
        numbers = entry.unsqueeze(0).unsqueeze(-1)
        last = _compared(Ops.MAX, numbers._result(expand(numbers.uop, (rows, count, 1))), index, segments).squeeze(-1)
        found = last.ge(0)
    last = choose(found, last, last._filled(0))
    values = looked_up(x, last)
    if x.dtype.is_float:
        nodes = index.uop, last.uop

        def to_winners(grad: Sortable) -> Sortable:
            named, winner = (Sortable._make(node) for node in nodes)
            wins = looked_up(winner, named).eq(Sortable._make(entry_node)).unsqueeze(-1)
            part = looked_up(grad, named)
            return choose(wins, part, part._filled(0))

        entry_node = entry.uop
        _is_linear(values.uop, x.uop, to_winners)
    return found, values


# --- by comparing ---------------------------------------------------------------------------------------------------
def _compared(op: Op, x: Rows, index: Sortable, segments: Size) -> Rows:
    """Reduce all entries for each index, where entries of other indices are neutral.

    With many entries the compiler scatters each (compiler/optimize/scatter.py). Slices of them have separate tables,
    for several threads, and for sums that are not too long; their number depends on the shape alone.
    """
    rows, count, depth = x.node_shape
    unit = {Ops.ADD: 0, Ops.MUL: 1, Ops.MIN: x.dtype.max}.get(op, x.dtype.min)
    tables = None
    if is_long(count, segments, depth, rows):
        rows, count, depth = x.shape
        assert isinstance(segments, int)
        parts = max(1, min(_PARTS // rows, count // max(_LEAST, _TABLE * segments)))
        tables = rows, -1, segments, depth
        parts = next((n for n in range(parts, parts // 2, -1) if count % n == 0), parts)
        missing = -count % parts
        index = index.cast(_holding(segments + 1)).pad([(0, 0), (0, missing)], value=segments)
        x = x.pad([(0, 0), (0, missing), (0, 0)])
        x, index = x.reshape((rows * parts, -1, depth)), index.reshape((rows * parts, -1))
    hit = index.unsqueeze(1).eq(_numbers(index, segments, index.dtype).unsqueeze(-1)).unsqueeze(-1)
    near = x.unsqueeze(1)
    total = choose(hit, near, near._filled(unit))._reduce(op, 2, False, "scatter")
    return total if tables is None else total._stored().reshape(tables)._reduce(op, 1, False, "scatter")


# --- by sorting ------------------------------------------------------------------------------------------------------
class _Runs(NamedTuple):
    """Entries in the order of their indices. Rows are padded to a power of two."""

    entry: Sortable  # of each sorted one: its number, counted through all rows
    segment: Sortable  # its index, counted through all rows of `start`
    start: Sortable  # (rows, segments + 1): where the entries of each index start, counted through all rows

    def first(self, segments: Size) -> Sortable:
        return self.start.shrink([None, (0, segments)])  # type: ignore[list-item]

    def end(self, segments: Size) -> Sortable:
        return self.start.shrink([None, (1, segments + 1)])  # type: ignore[list-item]


def _sorted(index: Sortable, segments: Size) -> _Runs:
    rows, count = index.shape
    assert isinstance(segments, int)
    bits = (count - 1).bit_length()
    width = 1 << bits
    dtype = _holding((segments + 1) << bits)
    padded = index.cast(dtype).pad([(0, 0), (0, width - count)], value=segments)
    keys = padded.bitwise_left_shift(bits).bitwise_or(_numbers(index, width, dtype))._merged(width)._stored()
    small = _holding(rows * max(width, segments + 1) + 1)
    entry = keys.bitwise_and(width - 1).cast(small).minimum(count - 1).add(_starts(keys, rows, count, small))
    segment = (
        keys.bitwise_right_shift(bits).cast(small).minimum(segments - 1).add(_starts(keys, rows, segments + 1, small))
    )
    flat = keys.flatten()
    wanted = _numbers(index, segments + 1, dtype).bitwise_left_shift(bits)
    start = _starts(index, rows, width, small).expand((rows, segments + 1))
    for step in [*(width >> bit for bit in range(1, bits + 1)), 1]:
        start = choose(_at(flat, start.add(step - 1)).lt(wanted), start.add(step), start)
    return _Runs(entry.flatten(), segment.flatten(), start._stored())


def _added_sorted(x: Rows, runs: _Runs, segments: Size) -> Rows:
    rows, count, depth = x.shape
    assert isinstance(segments, int)
    first, end = runs.first(segments), runs.end(segments)
    if segments <= count:
        return _folded(x, runs, (first.flatten(), end.flatten())).reshape((rows, segments, depth))
    here = _numbers(first, runs.entry.shape[0], first.dtype)  # the first entry of a run has the sum, no other has any
    start = runs.start.flatten()
    stop = choose(here.eq(_at(start, runs.segment)), _at(start, runs.segment.add(1)), here)
    sums = _folded(x, runs, (here, stop._stored()))._stored()
    found = first.lt(end).unsqueeze(-1)
    values = _at(sums, first.minimum(here.shape[0] - 1))
    return choose(found, values, values._filled(0))


def _folded(x: Rows, runs: _Runs, bounds: tuple[Sortable, Sortable]) -> Rows:
    """Reduce the sorted entries from one position up to another.

    On each level the run takes its first node if that is the right half of its parent, and its last one if that is a
    left half. The remaining nodes are whole parents.
    """
    rows, count, depth = x.shape
    nodes = _at(x.reshape((rows * count, depth)), runs.entry).cast(accumulator(x.dtype))
    first, end = bounds
    parts: list[Rows] = []
    while True:
        some, last = first.lt(end), end.sub(1)
        ends = [
            (some.logical_and(first.bitwise_and(1).eq(1)), first),
            (some.logical_and(last.bitwise_and(1).eq(0)), last),
        ]
        is_root = nodes.shape[0] == rows
        for is_taken, node in [(some, first)] if is_root else ends:
            part = _at(nodes, node.maximum(0).minimum(nodes.shape[0] - 1))
            parts.append(choose(is_taken.unsqueeze(-1), part, part._filled(0)))
        if is_root:
            return functools.reduce(lambda a, b: a._apply(Ops.ADD, b), parts)
        first, end = first.add(1).bitwise_right_shift(1), end.bitwise_right_shift(1)
        nodes = nodes.reshape((nodes.shape[0] // 2, 2, depth))._reduce(Ops.ADD, 1, False, "scatter")._stored()


# --- small words -----------------------------------------------------------------------------------------------------
def _at(x: Rows, index: Sortable) -> Rows:
    return x._result(take(x.uop, index.uop, 0), index)


def _numbers(like: Rows, count: Size, dtype: DType) -> Rows:
    return like._make(iota(count, dtype))


def _starts(like: Rows, rows: Size, step: Size, dtype: DType = dtypes.int64) -> Rows:
    """Return (rows, 1): the start of each row, with `step` entries each."""
    return like._make(reshape(iota(rows, dtype), (rows, 1))).mul(like._make(iota(1, dtype))._tensor(step))


def _holding(count: int) -> DType:
    """The ints that count so far."""
    return dtypes.int32 if count <= 1 << 31 else dtypes.int64

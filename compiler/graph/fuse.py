"""Fusion: decide which nodes of a tensor graph share a kernel, and which are stored in a separate buffer.

When: after choose_stored, on the closed graph (its data are PARAMs). Why there: kernel borders must exist before loops
do. Assumes: a legal tensor graph. Guarantees: every stored node is the root of exactly one kernel. Every use of every
other node is listed with its kernel, index and gate (Use), so that building the kernel bodies is a simple fold.

The walk goes from the roots to the data, consumers first, so that all uses of a node are known when it is visited:
- used at one index by one kernel: it is fused into that kernel;
- a cheap node used at several indices: recomputed at each;
- used repeatedly by one kernel that can store it per row: it gets a RowBuffer: the exponentials of a softmax, the
  scores of attention;
- otherwise it is stored.
A reduction is fused into a consumer only if that costs no extra evaluation (its loops are the outermost ones of the
consumer) and leaves enough independent rows. Tests: tests/compiler/graph/test_fuse.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from kernmill.ir import (
    AxisKind,
    OpGroup,
    Ops,
    Shape,
    Size,
    UOp,
    as_size,
    dtypes,
    index_const,
    make_range,
    simplify,
    static,
)

from ..kernel.facts import BUFFER_COST, LOOP_COST, MOST_CODE, iterations
from . import why_fused as why
from .rangeify import TRUE, IndexMap, Use
from .why_fused import Why

__all__ = ["Fusion", "KernelRoot", "fuse"]

_CHEAP = 8  # an elementwise expression up to this cost is computed again rather than stored
_MAX_INDICES = 6  # a node used at more indices is stored in any case: each index is a copy of the expression
# ... except where loops of two are unrolled and their instances read the same elements: a bitonic network stage
_MAX_INSTANCES = 16
_REUSE = 3  # an expression with any cost, read this many times by one kernel, is stored
_MIN_ROWS = 8  # a reduction is fused into a wider consumer from this many rows on ...
_SMALL = 1 << 15  # ... or when the whole consumer is this small
_TILED = 4  # a reduction that reads its data this many times over wants a register tile
# a sum of up to this many ints is computed inside another sum that needs it once: weight blocks of a quantized product
_SHORT_SUM = 32
_UNKNOWN = 1 << 40
# a reduction inside a reduction may repeat this much work, if the alternative is to store all its operands
_REPEATS = 3
_MAX_ROW_LENGTH = 1 << 14  # elements of a row buffer
_ROW_GAIN = 4  # a reduction gets a row buffer if storing it would move this many times more than its inputs
_LEAVES = frozenset({Ops.PARAM, Ops.CONST, Ops.IOTA, Ops.VARIABLE, Ops.SINK})


@dataclass(slots=True)
class KernelRoot:
    """A node with a separate buffer, and the loops of the kernel that computes it."""

    node: UOp
    index: tuple[UOp, ...]
    loops: tuple[UOp, ...]
    paths: dict[UOp, tuple[UOp, ...]]  # the loops around the body of each loop, itself included
    cost: int = 0  # of all that was fused into it so far
    reduce_count: int = 0
    has_tile: bool = False  # a reduction that needs a register tile is inlined: a second one has no room
    row_buffer_count: int = 0
    has_gathers: bool = False
    has_blocks: bool = False  # short sums of ints inside a reduction: bytes are unpacked where they are used
    row_loops: set[UOp] = field(default_factory=set[UOp])
    shared_loops: dict[object, tuple[UOp, ...]] = field(default_factory=dict[object, "tuple[UOp, ...]"])


@dataclass(frozen=True, slots=True)
class RowBuffer:
    """A row buffer inside a kernel: computed at `use`, over its own loops, again for each iteration of `around`."""

    use: Use
    loops: tuple[UOp, ...]
    axes: tuple[int, ...]  # the axes of the node that its loops run over
    around: tuple[UOp, ...]


Below: TypeAlias = "tuple[Use | None, ...]"
Loops: TypeAlias = "tuple[UOp, ...]"


@dataclass(slots=True)
class Fusion:
    """The decision: kernels, and for every node the uses it is computed for, with the uses of its sources."""

    order: list[UOp]
    packed: set[UOp]
    roots: list[KernelRoot] = field(default_factory=list[KernelRoot])
    kernel_of: dict[UOp, int] = field(default_factory=dict[UOp, int])
    uses: dict[UOp, list[Use]] = field(default_factory=dict[UOp, list[Use]])
    row_buffers: dict[UOp, RowBuffer] = field(default_factory=dict[UOp, RowBuffer])
    source_uses: dict[tuple[UOp, Use], Below] = field(default_factory=dict[tuple[UOp, Use], "Below"])
    reduce_loops: dict[tuple[UOp, Use], Loops] = field(default_factory=dict[tuple[UOp, Use], "Loops"])
    gathers: dict[UOp, tuple[UOp, Use, Size]] = field(default_factory=dict[UOp, tuple[UOp, Use, "Size"]])
    readers: dict[UOp, list[UOp]] = field(default_factory=dict[UOp, list[UOp]])
    position: dict[UOp, int] = field(default_factory=dict[UOp, int])
    why: dict[UOp, Why] = field(default_factory=dict[UOp, Why])
    index_map: IndexMap = field(default_factory=IndexMap)


@dataclass(slots=True)
class _Facts:
    """Facts about the inputs of a node, down to data and reductions."""

    cost: int = 0  # per element
    reads: int = 1  # buffers
    is_heavy: bool = False  # it contains a reduction at full size
    depth: int = 0  # reductions on top of each other
    widest: int = 0  # the most elements of one buffer
    is_tiled: bool = False  # the reduction reads its data several times: it wants a register tile, a kernel to itself
    data: int = 0  # the most elements of one buffer, beneath the reductions as well
    terms: int = 1  # ints that are added up for an element
    is_bytes: bool = False  # all data are bytes, so that the node is at least as large


def fuse(
    sink: UOp,
    stored: Mapping[UOp, Why],
    in_place: frozenset[UOp] = frozenset(),
    device_of: Mapping[UOp, str] | None = None,
    packers: frozenset[str] = frozenset(),
) -> Fusion:
    """Kernel borders for a closed graph.

    The nodes of `stored` get memory in any case; ASSIGNs of `in_place` write into old memory. Products on the
    devices of `packers` pack both operands, and round them meanwhile.
    """
    packed = {node for node, device in (device_of or {}).items() if device in packers}
    fusion = Fusion(sink.toposort(), packed)
    for number, node in enumerate(fusion.order):
        fusion.position[node] = number
        for source in node.src:
            fusion.readers.setdefault(source, []).append(node)
    facts = _gather_facts(fusion.order, stored)
    found: dict[UOp, dict[Use, None]] = {}  # in the order in which they were found; constants have very many
    for node in reversed(fusion.order):
        uses = fusion.uses[node] = [*found.pop(node, ())]
        if node.op in _LEAVES and node not in stored:
            _charge(uses, BUFFER_COST * (node.op is Ops.PARAM), fusion)
            continue
        is_free = not uses or _is_cheaper_to_recompute(node, facts)
        answer = stored.get(node) or (why.SMALLER if is_free else _needs_memory(node, uses, facts, fusion))
        fusion.why[node], is_stored = answer, answer.is_stored
        may_keep = node not in stored and not is_free and (is_stored or _is_repeated(node, uses, facts, fusion))
        if may_keep and _make_row_buffer(node, uses, facts, fusion):
            uses, fusion.why[node] = [fusion.row_buffers[node].use], why.ROW
        elif is_stored:
            _charge(uses, BUFFER_COST, fusion)
            uses = [_open_kernel(node, fusion, node in in_place)]
        _charge(uses, LOOP_COST if node.op is Ops.REDUCE else node.op.cost * node.op.is_elementwise, fusion)
        for use in uses:
            below = (None, use) if node in in_place else _sources(node, use, fusion, facts)
            if node in in_place and not node.src[1].shape:
                below = (None, Use(use.kernel, (), use.gate))
            fusion.source_uses[node, use] = below
            for source, source_use in zip(node.src, below, strict=False):
                if source_use is not None:
                    found.setdefault(source, {})[source_use] = None
    return fusion


def _gather_facts(order: list[UOp], stored: Mapping[UOp, Why]) -> dict[UOp, _Facts]:
    facts: dict[UOp, _Facts] = {}
    for node in order:
        below = [facts[s] for s in (node.src[:1] if node.op is Ops.WAIT else node.src)]
        depth = max((f.depth for f in below), default=0)
        data = max((f.data for f in below), default=0)
        widest = max((f.widest for f in below), default=0)
        terms = max((f.terms for f in below), default=1)
        if node.op in _LEAVES or node in stored:
            is_data = node.op is not Ops.CONST and node.op is not Ops.IOTA
            size = _elements(node.shape) if is_data else 0
            is_bytes = node.dtype.size_bytes == 1 or not is_data
            facts[node] = _Facts(reads=int(is_data), widest=size, data=size, is_bytes=is_bytes)
        elif node.op is Ops.REDUCE:
            is_tiled = _elements(node.src[0].shape) >= _TILED * max(1, below[0].widest)
            is_tiled |= below[0].is_tiled and (below[0].terms <= _SHORT_SUM or _extends_sum(node))
            terms = terms * _reduced(node) if node.dtype.is_int else _UNKNOWN
            facts[node] = _Facts(
                is_heavy=True, depth=depth + 1, widest=_elements(node.shape), is_tiled=is_tiled, data=data, terms=terms
            )
        else:
            cost = sum(f.cost for f in below) + (node.op.cost if node.op.is_elementwise else 0)
            reads = sum(f.reads for f in below)
            if node.op is Ops.EXPAND and reads and _elements(node.shape) >= _REUSE * _elements(node.src[0].shape):
                if cost > _CHEAP:  # its elements are read several times: it will be stored, without the expanded axes
                    data = max(data, widest := _elements(node.src[0].shape))
                cost, reads = 0, 1
            is_repeated = node.op is Ops.WINDOW and _elements(node.shape) > _elements(node.src[0].shape)
            is_heavy = any(f.is_heavy for f in below) and node.op is not Ops.EXPAND and not is_repeated
            widest = min(widest, _elements(node.shape))  # a slice may be taken
            is_tiled = is_heavy and any(f.is_tiled for f in below)
            is_bytes = all(f.is_bytes for f in (below[:1] if _takes_slices(node) else below))
            facts[node] = _Facts(min(cost, 1000), reads, is_heavy, depth, widest, is_tiled, data, terms, is_bytes)
    return facts


def _takes_slices(node: UOp) -> bool:
    """True if each index selects many elements: the indices are far smaller than what they take."""
    if node.op is not Ops.TAKE:
        return False
    return _elements(node.shape) >= _REUSE * dtypes.int64.size_bytes * _elements(node.src[1].shape)


def _charge(uses: Iterable[Use], cost: int, fusion: Fusion) -> None:
    """Add the cost of a node, or of reading it, to the kernels of these uses."""
    for use in uses:
        fusion.roots[use.kernel].cost += cost


def _open_kernel(node: UOp, fusion: Fusion, in_place: bool) -> Use:
    loops: list[UOp] = []
    index: list[UOp] = []
    shape = node.shape
    if in_place and node.arg is not None:  # only the region is written
        shape = tuple(as_size(-((start - stop) // step)) for start, stop, step in node.arg)
    for size in shape:
        if isinstance(size, int) and size == 1:
            index.append(index_const(0))
        else:
            loops.append(make_range(f"i{len(loops)}", size, AxisKind.LOOP))
            index.append(loops[-1])
    number = len(fusion.roots)
    paths = {loop: tuple(loops[: n + 1]) for n, loop in enumerate(loops)}
    fusion.roots.append(KernelRoot(node, tuple(index), tuple(loops), paths))
    fusion.kernel_of[node] = number
    return Use(number, tuple(index), TRUE)


# --- the decision ----------------------------------------------------------------------------------------------------
def _needs_memory(node: UOp, uses: list[Use], facts: dict[UOp, _Facts], fusion: Fusion) -> Why:
    fact = facts[node]
    if node.op.group is OpGroup.MOVEMENT:
        return why.SCATTERED if node.op is Ops.PERMUTE and _is_scattered(node, uses, facts, fusion) else why.VIEW
    if node.op in (Ops.TAKE, Ops.DETACH, Ops.WAIT):
        return why.GATHER if node.op is Ops.TAKE else why.VIEW
    if _is_unpacked(uses, fact, fusion):
        return why.UNPACKED
    if not fact.reads and fact.cost <= _CHEAP:  # no memory inputs: indices and constants only
        return why.NO_DATA
    is_heavy = fact.is_heavy and node.op.is_elementwise
    if _is_long(node, uses, fact, fusion):
        return why.CODE
    has_anchor = is_heavy and _has_cheap_anchor(node, facts, fusion)
    if not has_anchor:
        if node.op is Ops.REDUCE or is_heavy:
            if len(uses) > 1:
                return Why(True, why.REDUCED_OFTEN, len(uses))
            return _fuses_reduction(node, uses[0], fact, fusion)
        if fact.cost == 0 and (not _is_rounded(node) or node in fusion.packed):
            return why.ROUNDED
        if len(uses) > max(_MAX_INDICES, min(_MAX_INSTANCES, _unrolled_instances(uses))):
            return Why(True, why.COPIES, len(uses))
        if (count := len({use.kernel for use in uses})) > 1 and (fact.cost > _CHEAP or fact.reads > 2):
            return Why(True, why.SHARED, count)
    size = max(1, _elements(node.shape))
    if (times := max(_evaluations(use, fusion.roots[use.kernel]) for use in uses)) >= _REUSE * size:
        return Why(True, why.REPEATED, times // size)
    if has_anchor:
        return why.ANCHOR
    return why.ONCE if len(uses) == 1 else Why(False, why.CHEAP, len(uses))


def _is_long(node: UOp, uses: list[Use], fact: _Facts, fusion: Fusion) -> bool:
    """True if a kernel that reads the node has enough code already, and the node is not cheap.

    A chain of thousands of steps becomes kernels of bounded size. Most of them are equal, and are compiled once."""
    if node.op is not Ops.REDUCE and not fact.is_heavy and fact.cost <= _CHEAP and fact.reads <= 2:
        return False
    kernels = [(use, kernel) for use in uses if (kernel := fusion.roots[use.kernel]).cost >= MOST_CODE]
    if _elements(node.shape) <= fact.widest:
        return bool(kernels)
    return any(
        _needed(use) <= set(kernel.loops) for use, kernel in kernels
    )  # the operands of the reduction take more than the reduction


def _is_cheaper_to_recompute(node: UOp, facts: dict[UOp, _Facts]) -> bool:
    """True if recomputing is cheaper: the inputs are smaller (widening cast, pairwise comparison)."""
    if node.op is Ops.CAST:
        return node.src[0].dtype.size_bytes < node.dtype.size_bytes
    return node.op.group is OpGroup.COMPARE and _elements(node.shape) >= _REUSE * facts[node].widest > 0


def _is_rounded(node: UOp) -> bool:
    """True if a float becomes narrower. Several instructions round each one, and only narrow operands form pairs."""
    is_cast = node.op is Ops.CAST and node.dtype.is_float and node.src[0].dtype.is_float
    return is_cast and node.dtype.size_bytes < node.src[0].dtype.size_bytes


def _is_scattered(node: UOp, uses: list[Use], facts: dict[UOp, _Facts], fusion: Fusion) -> bool:
    """True if a window slides over elements that are computed in a different order: a sum of loops is divided to find
    them. They are read often enough to be stored anyway. Stored in the order of the window, neighbours are adjacent."""
    reads, computed = uses, node
    while computed.op in (Ops.RESHAPE, Ops.PERMUTE):
        reads = [fusion.index_map.moved(computed, use) for use in reads]
        computed = computed.src[0]
        if len(fusion.readers[computed]) > 1:
            return False
    if computed.op in _LEAVES or not facts[computed].reads or _is_cheaper_to_recompute(computed, facts):
        return False
    if not any(_evaluations(use, fusion.roots[use.kernel]) >= _REUSE * max(1, _elements(node.shape)) for use in uses):
        return False
    indices = {i for use in reads for i in use.indices}
    divided = {part for i in indices for part in i.toposort() if part.op in (Ops.FLOORDIV, Ops.MOD)}
    return any(len(part.src[0].ranges) > 1 for part in divided)


def _unrolled_instances(uses: list[Use]) -> int:
    """Count the instances of the node if the loops of two around all uses are unrolled."""
    shared = frozenset[UOp].intersection(*(_needed(use) for use in uses)) if uses else ()
    return 1 << sum(loop.src[0].bounds == (2, 2) for loop in shared)


def _is_unpacked(uses: list[Use], fact: _Facts, fusion: Fusion) -> bool:
    """True for quants and scales: they are unpacked at each use, not stored."""
    return fact.is_bytes and all(fusion.roots[use.kernel].has_blocks for use in uses)


def _is_repeated(node: UOp, uses: list[Use], facts: dict[UOp, _Facts], fusion: Fusion) -> bool:
    """True if it is expensive, and would be computed several times per element."""
    if not (node.op.is_elementwise and facts[node].cost > _CHEAP) or _is_unpacked(uses, facts[node], fusion):
        return False
    times = sum(_evaluations(use, fusion.roots[use.kernel]) for use in uses)
    return times >= 2 * max(1, _elements(node.shape))


def _make_row_buffer(node: UOp, uses: list[Use], facts: dict[UOp, _Facts], fusion: Fusion) -> bool:
    """Give the node a row buffer in its only kernel, if its rows there are many, short, and each computed once."""
    first = uses[0]
    kernel = fusion.roots[first.kernel]
    if not facts[node].depth:  # computed from data alone: a separate kernel is as good, and shorter
        return False
    if any(use.kernel != first.kernel or use.gate is not TRUE for use in uses):
        return False
    axes = tuple(
        axis
        for axis, index in enumerate(first.indices)
        if any(use.indices[axis] is not index for use in uses) or not index.ranges <= set(kernel.loops)
    )
    fixed = tuple(i for axis, i in enumerate(first.indices) if axis not in axes)
    around = _path(Use(first.kernel, fixed, TRUE), kernel)
    sizes = tuple(node.shape[axis] for axis in axes)
    length, rows = _elements(sizes), _product(around)
    if not 0 < len(axes) < len(node.shape) or rows < _MIN_ROWS or not 2 <= length <= _MAX_ROW_LENGTH:
        return False
    if rows * length > _elements(node.shape) or not _is_worth_a_row(node, uses, facts[node], kernel):
        return False
    number = kernel.row_buffer_count
    kernel.row_buffer_count += 1
    loops = tuple(make_range(f"t{number}_{n}", size, AxisKind.REDUCE) for n, size in enumerate(sizes))
    kernel.paths.update({loop: (*around, *loops[: n + 1]) for n, loop in enumerate(loops)})
    kernel.row_loops.update(loops)
    index = list(first.indices)
    for axis, loop in zip(axes, loops, strict=True):
        index[axis] = loop
    fusion.row_buffers[node] = RowBuffer(Use(first.kernel, tuple(index), TRUE), loops, axes, around)
    return True


def _is_worth_a_row(node: UOp, uses: list[Use], fact: _Facts, kernel: KernelRoot) -> bool:
    """True if a row buffer pays for the register tiles of products. One product reads the result of another, and the
    intermediate is much larger than the kernel's input and output. A small intermediate is cheap to store, and both
    kernels then choose their own loops."""
    size, times = _elements(node.shape), max(_evaluations(use, kernel) for use in uses)
    if fact.is_tiled and times <= size and not kernel.row_loops:
        return False
    if fact.is_tiled or times >= _TILED * size:
        return size >= _ROW_GAIN * max(fact.data, _elements(kernel.node.shape))
    return size * _ROW_GAIN >= fact.data


def _has_cheap_anchor(node: UOp, facts: dict[UOp, _Facts], fusion: Fusion) -> bool:
    """True if cheap steps compute it from one stored node that others read too: recompute it."""
    if facts[node].reads > _CHEAP or len(fusion.uses[node]) > _MAX_INDICES:
        return False
    between = {node}
    below = {s for s in node.src if facts[s].is_heavy}
    cost = node.op.cost
    while below and cost <= 2 * _CHEAP:
        if len(below) == 1:
            (anchor,) = below
            inner = (anchor, *(n for n in between if n is not node))
            if any(reader not in between for n in inner for reader in fusion.readers[n]):
                return True
        latest = max(below, key=fusion.position.__getitem__)
        if latest.op is Ops.REDUCE:
            return False
        below.remove(latest)
        between.add(latest)
        cost += latest.op.cost * latest.op.is_elementwise
        below |= {s for s in latest.src if facts[s].is_heavy}
    return False


def _fuses_reduction(node: UOp, use: Use, fact: _Facts, fusion: Fusion) -> Why:
    """Compute the reduction inside its consumer, if nothing is computed twice there and rows enough remain."""
    kernel = fusion.roots[use.kernel]
    needed, times, size = _needed(use), _evaluations(use, kernel), max(1, _elements(node.shape))
    # inside another reduction's loop: allowed if both are one reduction over more loops
    if not needed <= set(kernel.loops):
        repeats = times / size
        often = why.GATED if use.gate is not TRUE and repeats <= 1 else Why(True, why.INNER_OFTEN, round(repeats))
        if needed <= {*kernel.loops, *kernel.row_loops}:  # inside a row buffer: computed as often as that is
            return why.IN_ROW if use.gate is TRUE and repeats <= 1 else often
        if fact.terms <= _SHORT_SUM and use.gate is TRUE and repeats <= 1:
            kernel.has_blocks = True
            return why.SHORT
        if not (node.op is Ops.REDUCE and _continues(node, fusion) and repeats <= _REPEATS):
            return why.INNER if repeats <= 1 else often
        is_long = fact.is_tiled and _reduced(node) > _SHORT_SUM
        return why.INNER_TILE if is_long and _loses_its_tile(node, use, fusion) else why.ONE_SUM
    if use.gate is not TRUE or times > _elements(node.shape):
        return why.GATED if use.gate is not TRUE else Why(True, why.OUTER_OFTEN, times // size)
    rows = _product(r for r in kernel.loops if r in needed)
    total = _product(kernel.loops)
    if total * _reduced(node) <= _SMALL:
        return why.SMALL
    if rows == total:
        is_alone = not (fact.is_tiled and kernel.has_tile)
        kernel.has_tile |= fact.is_tiled and node.op is Ops.REDUCE
        return why.OUTER if is_alone else why.TILES
    if rows >= _MIN_ROWS:
        return why.TILE if fact.is_tiled else Why(False, why.ROWS, rows)
    return Why(True, why.FEW_ROWS, rows)


def _continues(node: UOp, fusion: Fusion) -> bool:
    """True if the only reader of this reduction, movement ops aside, is a reduction with the same op."""
    readers = fusion.readers[node]
    while len(readers) == 1 and readers[0].op.group is OpGroup.MOVEMENT and readers[0].op is not Ops.EXPAND:
        readers = fusion.readers[readers[0]]
    return len(readers) == 1 and readers[0].op is Ops.REDUCE and readers[0].arg[0] is node.arg[0]


def _extends_sum(node: UOp) -> bool:
    """True if this reduction and one that it reads, movement ops aside, are fused into one: `_continues` from above."""
    inner = node.src[0]
    while inner.op.group is OpGroup.MOVEMENT and inner.op is not Ops.EXPAND:
        inner = inner.src[0]
    is_same = inner.op is Ops.REDUCE and inner.arg[0] is node.arg[0]
    return is_same and _elements(node.src[0].shape) <= _REPEATS * _elements(inner.shape)


def _loses_its_tile(node: UOp, use: Use, fusion: Fusion) -> bool:
    """True if this reduction, fused into its reader, no longer reads its data for many results at a time. That is so if
    some data differ in every row of the kernel, or are invariant in loops that the reader closes."""
    rows = set(fusion.roots[use.kernel].loops)
    closed = _needed(use) - rows
    indices = tuple(index_const(0) if axis in node.arg[1] else i for axis, i in enumerate(use.indices))
    todo = {(node.src[0], Use(use.kernel, indices, use.gate))}
    while todo:
        node, use = latest = max(todo, key=lambda reading: fusion.position[reading[0]])  # after all its readers: once
        todo.remove(latest)
        if node.op.group is OpGroup.MOVEMENT:
            todo.add((node.src[0], fusion.index_map.moved(node, use)))
        elif node.op.is_elementwise:
            todo |= {(source, use) for source in node.src if source.shape}
        elif node.op not in (Ops.CONST, Ops.IOTA) and (rows <= _needed(use) or not closed <= _needed(use)):
            return True
    return False


def _reduced(node: UOp) -> int:
    """Return the elements that are reduced into one, 1 for other nodes."""
    if node.op is not Ops.REDUCE:
        return 1
    return max(1, _elements(node.src[0].shape) // max(1, _elements(node.shape)))


def _evaluations(use: Use, kernel: KernelRoot) -> int:
    """Return how often the kernel computes an expression here: once per iteration of the loops around it."""
    return _product(_path(use, kernel))


def _path(use: Use, kernel: KernelRoot) -> tuple[UOp, ...]:
    """Return the loops around an expression here, outermost first."""
    path: tuple[UOp, ...] = ()
    for loop in _needed(use):
        around = kernel.paths[loop]
        if len(around) > len(path):
            path = around
    return path


def _needed(use: Use) -> frozenset[UOp]:
    return frozenset[UOp]().union(*(i.ranges for i in use.indices), use.gate.ranges)


def _elements(shape: Shape) -> int:
    return prod(static(shape))


def _product(ranges: Iterable[UOp]) -> int:
    return prod(iterations(r) for r in ranges)


# --- where the sources are read --------------------------------------------------------------------------------------
def _sources(node: UOp, use: Use, fusion: Fusion, facts: dict[UOp, _Facts]) -> tuple[Use, ...]:
    if node.op.group is OpGroup.MOVEMENT:
        return (fusion.index_map.moved(node, use),)
    match node.op:
        case Ops.REDUCE:
            return (_reduction(node, use, fusion, facts),)
        case Ops.TAKE:
            return _take_placeholder(node, use, fusion)
        case Ops.ASSIGN:
            return _assigned(node, use)
        case Ops.ROUTINE:
            return ()
        case Ops.WAIT:
            return (use,)
        case Ops.COPY | Ops.CHECK:
            return (use, Use(use.kernel, (), use.gate))[: len(node.src)]
    return tuple(use if s.shape else Use(use.kernel, (), use.gate) for s in node.src)


def _reduction(node: UOp, use: Use, fusion: Fusion, facts: dict[UOp, _Facts]) -> Use:
    """Make new loops over the reduced axes; independent reductions over the same axes at the same index share loops."""
    kernel = fusion.roots[use.kernel]
    sizes = tuple(node.src[0].shape[axis] for axis in node.arg[1])
    shared = (facts[node].depth, sizes, use.indices, use.gate)
    loops = kernel.shared_loops.get(shared)
    if loops is None:
        first = kernel.reduce_count
        loops = tuple(make_range(f"k{first + n}", size, AxisKind.REDUCE) for n, size in enumerate(sizes))
        kernel.reduce_count += len(loops)
        kernel.shared_loops[shared] = loops
        around = _path(use, kernel)
        kernel.paths.update({loop: (*around, *loops[: n + 1]) for n, loop in enumerate(loops)})
    fusion.reduce_loops[node, use] = loops
    index = list(use.indices)
    for axis, loop in zip(node.arg[1], loops, strict=True):
        index[axis] = loop
    return Use(use.kernel, tuple(index), use.gate)


def _take_placeholder(node: UOp, use: Use, fusion: Fusion) -> tuple[Use, Use]:
    """Use a placeholder for the index on the taken axis; the loaded index replaces it when bodies are built."""
    data, index_node = node.src
    axis, rank = node.arg, len(index_node.shape)
    index_use = Use(use.kernel, use.indices[axis : axis + rank], use.gate)
    free = sorted(_needed(index_use), key=lambda r: str(r.arg[0]))
    last = int(static(data.shape)[axis]) - 1
    name = f"take{use.kernel}_{len(fusion.gathers)}"
    stand_in = UOp(Ops.VARIABLE, dtypes.index, tuple(free), (name, 0, max(0, last)))
    fusion.gathers[stand_in] = (index_node, index_use, data.shape[axis])
    fusion.roots[use.kernel].has_gathers = True
    return Use(use.kernel, (*use.indices[:axis], stand_in, *use.indices[axis + rank :]), use.gate), index_use


def _assigned(node: UOp, use: Use) -> tuple[Use, Use]:
    """Inside the region the new value is read, outside the old one."""
    if node.arg is None:
        return use, use if node.src[1].shape else Use(use.kernel, (), use.gate)
    inside, index = region_gate(node, use.indices)
    return use, Use(use.kernel, index if node.src[1].shape else (), simplify(use.gate & inside))


def region_gate(node: UOp, index: tuple[UOp, ...]) -> tuple[UOp, tuple[UOp, ...]]:
    """For an ASSIGN to a region, return the predicate that an index is inside, and the index into the value."""
    gate, indices = TRUE, []
    for i, (start, stop, step), size in zip(index, node.arg, node.src[0].shape, strict=True):
        if start != 0:
            gate = gate & (i >= start)
        if stop != size:
            gate = gate & (i < stop)
        if step != 1:
            gate = gate & ((i - start) % step).eq(0)
        indices.append(simplify((i - start) // step))
    return simplify(gate), tuple(indices)

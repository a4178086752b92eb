"""The arguments that a search may try for each action kind, and arguments refitted to a changed schedule.

A candidate need not be legal (apply_actions decides) nor good (measurement decides); it should be worth a try. The row
of each action in actions.py names its functions. Tests: tests/compiler/optimize/test_proposals.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from kernmill.ir import AxisKind, Ops, Target, UOp, closed_ranges, memory_of

from ..kernel.facts import loops_of, order_of
from ..lower.find_dots import BYTES
from .analysis import exceeds_caches

Args: TypeAlias = "tuple[str, ...]"

_BLOCKS: Final = (4, 8, 16, 32, 64, 128, 256)
_TILES: Final = (2, 3, 4, 5, 6, 8, 12, 16)
_TERMS: Final = (64, 128, 256, 512, 1024)
_GROUPS: Final = (2, 3, 4, 8)
_PREFETCH_DISTANCES: Final = (1024, 2048, 4096, 8192, 16384)  # bytes
_ORDERED: Final = 6  # more output loops than that are not moved about
_COPIED: Final = {AxisKind.REDUCE: 0, AxisKind.RFACTOR: 1, AxisKind.UNROLL: 1, AxisKind.VECTOR: 2}


def _loops(ast: UOp, *kinds: AxisKind) -> list[UOp]:
    return [node for node in ast.toposort() if node.op is Ops.RANGE and node.arg[1] in kinds]


def _amounts(ast: UOp, amounts: Sequence[int], *kinds: AxisKind) -> Iterator[Args]:
    """Each loop of these kinds with each amount up to its size, and with a small size itself."""
    for loop in _loops(ast, *kinds):
        size = loop.src[0].bounds[1]
        own = {int(size)} if loop.src[0].is_const and 2 <= size <= max(amounts) else set[int]()
        yield from ((str(loop.arg[0]), str(n)) for n in sorted({n for n in amounts if n <= size} | own))


def _parts(ast: UOp, amounts: Sequence[int], *kinds: AxisKind) -> Iterator[Args]:
    """Each loop of these kinds with each amount below its size."""
    return ((str(r.arg[0]), str(n)) for r in _loops(ast, *kinds) for n in amounts if n < r.src[0].bounds[1])


def splits(ast: UOp, target: Target) -> Iterable[Args]:
    """Blocks for a cache."""
    return _parts(ast, _BLOCKS, AxisKind.LOOP, AxisKind.REDUCE)


def unrolls(ast: UOp, target: Target) -> Iterable[Args]:
    """Register tiles and longer bodies."""
    return _amounts(ast, _TILES, AxisKind.LOOP, AxisKind.REDUCE)


def parts(ast: UOp, target: Target) -> Iterable[Args]:
    """Streams of output loops."""
    return _amounts(ast, (2, 4), AxisKind.LOOP)


def rfactors(ast: UOp, target: Target) -> Iterable[Args]:
    """More accumulators."""
    return _amounts(ast, _GROUPS, AxisKind.REDUCE)


def vectors(ast: UOp, target: Target) -> Iterable[Args]:
    """A register's lanes of each dtype in memory, half and twice as many."""
    sizes = {n.dtype.scalar.size_bytes for n in ast.toposort() if n.op is Ops.PARAM}
    full = {target.vector_bytes // size for size in sizes if size}
    widths = sorted({w for n in full for w in (n // 2, n, 2 * n) if w >= 2})
    return _amounts(ast, widths, AxisKind.LOOP, AxisKind.REDUCE) if widths else []


def scatters(ast: UOp, target: Target) -> Iterable[Args]:
    """Each reduction with each loop that it can scatter to; work-items would need a barrier."""
    sums, outputs = ([str(r.arg[0]) for r in _loops(ast, kind)] for kind in (AxisKind.REDUCE, AxisKind.LOOP))
    return [(terms, output) for terms in sums for output in outputs] if not target.group_items else []


def accumulations(ast: UOp, target: Target) -> Iterable[Args]:
    """Long reductions in blocks that fit a cache."""
    return _parts(ast, _TERMS, AxisKind.REDUCE)


def threads(ast: UOp, target: Target) -> Iterable[Args]:
    """Any output loop."""
    return [(name,) for name in order_of(ast)] if target.has_threads else []


def items(ast: UOp, target: Target) -> Iterable[Args]:
    """Some items, or all that a group can have."""
    return _amounts(ast, (8, 16, 32, 64, 128, 256), AxisKind.LOOP, AxisKind.REDUCE) if target.group_items else []


def grids(ast: UOp, target: Target) -> Iterable[Args]:
    """The outermost output loops, as many as fit."""
    return [order_of(ast)[:count] for count in range(len(order_of(ast)), 0, -1)] if target.group_items else []


def orders(ast: UOp, target: Target) -> Iterable[Args]:
    """One loop moved to a different position."""
    order = order_of(ast)
    found: dict[Args, None] = {}
    for name in order if 2 <= len(order) <= _ORDERED else ():
        rest = [other for other in order if other != name]
        found |= {(*rest[:position], name, *rest[position:]): None for position in range(len(order))}
    return [args for args in found if args != order]


def tiles(ast: UOp, target: Target) -> Iterable[Args]:
    """Two output loops of the sizes that a matrix unit has."""
    loops = _loops(ast, AxisKind.LOOP)
    for unit in target.units:
        rows, columns = ([str(r.arg[0]) for r in loops if r.src[0].arg == size] for size in (unit.m, unit.n))
        yield from ((a, b) for a in rows for b in columns if a != b)


def stages(ast: UOp, target: Target) -> Iterable[Args]:
    """A buffer over the inner loops, and also over a block of an output loop."""
    found: dict[Args, None] = {}
    for node in ast.toposort():
        if node.op is not Ops.LOAD or node.src[0].src[0].op is not Ops.PARAM:
            continue
        memory = node.src[0].src[0]
        inner = sorted((r for r in node.ranges if r.arg[1] in _COPIED), key=_stage_order)
        blocks = sorted((r for r in node.ranges if r.arg[1] == AxisKind.LOOP and "." in r.arg[0]), key=_stage_order)
        for loops in (inner, *([block, *inner] for block in blocks)):
            count = memory.dtype.size_bytes
            for loop in loops:
                count *= int(loop.src[0].arg) if loop.src[0].is_const else target.l2_bytes + 1
            if loops and count <= target.l2_bytes:
                found[str(memory.arg[0]), *(str(r.arg[0]) for r in loops)] = None
    return list(found)


def _stage_order(loop: UOp) -> tuple[int, str]:
    """Lanes last: they are contiguous in the copy."""
    return _COPIED.get(AxisKind(loop.arg[1]), 0), str(loop.arg[0])


def rows(ast: UOp, target: Target) -> Iterable[Args]:
    """Each row buffer."""
    return [(str(n.src[-1].arg[0]),) for n in ast.toposort() if n.op is Ops.AFTER and n.src[0].op is Ops.LOCAL]


def inner(ast: UOp, target: Target) -> Iterable[Args]:
    """Each loop of a reduction except its innermost."""
    sums = [closed_ranges(node) for node in ast.toposort() if node.op is Ops.REDUCE]
    return [(str(loop.arg[0]),) for loops in sums for loop in loops[:-1]] if len(sums) == 1 else []


def biases(ast: UOp, target: Target) -> Iterable[Args]:
    """Each buffer of bytes, with each output loop that it is invariant in."""
    loads = [n for n in ast.toposort() if n.op is Ops.LOAD and n.dtype in BYTES and n.src[0].src[0].op is Ops.PARAM]
    loops = _loops(ast, AxisKind.LOOP)
    return [(str(n.src[0].src[0].arg[0]), str(r.arg[0])) for n in loads for r in loops if r not in n.ranges]


def nothing(ast: UOp, target: Target) -> Iterable[Args]:
    """No candidates: a search does not try this action."""
    return []


def once(ast: UOp, target: Target) -> Iterable[Args]:
    """Once for all stores."""
    return [()] if any(store.arg is None for store in ast.src) else []


def streams(ast: UOp, target: Target) -> Iterable[Args]:
    """Once, for results that exceed the caches. A search times a kernel alone: it does not see that the next kernel
    must load from memory what could have been in a cache."""
    indices = [store.src[0] for store in ast.src]
    largest = max(int(memory_of(index).arg[1]) * index.dtype.scalar.size_bytes for index in indices)
    return once(ast, target) if exceeds_caches(largest, target) else []


def prefetches(ast: UOp, target: Target) -> Iterable[Args]:
    """Some distances, into either cache."""
    return [(str(n), *cache) for n in _PREFETCH_DISTANCES for cache in ((), ("L2",))]


def in_order(ast: UOp, target: Target) -> Iterable[Args]:
    """Once, where vectors fill half a line."""
    return [()] if target.vector_bytes >= 32 else []


# --- after an earlier action was changed or dropped -------------------------------------------------------------------
def fit_order(ast: UOp, args: Args) -> Args | None:
    """The remaining loops in their old order; new ones at their default positions."""
    names = [name for name in args if name in order_of(ast)]
    for position, name in enumerate(order_of(ast)):
        if name not in names:
            names.insert(position, name)
    return tuple(names) if len(names) > 1 else None


def fit_thread(ast: UOp, args: Args) -> Args | None:
    """Another loop where this one is used up."""
    return args if args[0] in order_of(ast) else order_of(ast)[:1] or None


def fit_grid(ast: UOp, args: Args) -> Args | None:
    """The remaining loops of the grid."""
    return tuple(name for name in args if name in order_of(ast)) or None


def fit_stage(ast: UOp, args: Args) -> Args | None:
    """The remaining loops of the stage."""
    names = loops_of(ast)
    loops = tuple(name for name in args[1:] if name in names)
    return (args[0], *loops) if loops else None

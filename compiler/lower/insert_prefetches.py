"""Prefetches in reduction loops: next panel, next rows of a tile, results, gathered rows.

When: once reductions are accumulators. Why there: the remaining loads are known, and AFTER can hold statements of an
accumulator's loop. A panel is copied in a burst. If the copy itself prefetches (LOAD's arg), the multipliers wait for
memory; if the products of the panel before prefetch it, both overlap. The row after a row with a loaded index is not
the next row, so it is prefetched by its own index. Assumes: the bytes ahead of a copy are the next panel's. Guarantees:
the same results; a copy whose readers have different loops keeps its prefetches. Why: docs/topics/prefetch.md,
docs/topics/convolutions.md. Tests: tests/compiler/lower/test_insert_prefetches.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias

from kernmill.ir import (
    LINE_BYTES,
    Ops,
    UOp,
    closed_ranges,
    dtypes,
    from_linear,
    linear,
    memory_of,
    simplify,
    substitute,
    with_sources,
)  # fmt: skip

from ..kernel.facts import iterations
from ..kernel.linearize import loop_depths

__all__ = ["insert_prefetches"]

# properties shared by cache lines: the reduction whose loop prefetches, memory, the base index, PREFETCH's arg
_Lines: TypeAlias = tuple[UOp, UOp, UOp, "int | None"]


def insert_prefetches(ast: UOp) -> UOp:
    """Return the kernel with its prefetches where computation hides them."""
    return _prefetch_once_per_line(_prefetch_tiles(_prefetch_gathers(_move_panel_prefetches(ast))))


def _prefetch_once_per_line(ast: UOp) -> UOp:
    """Remove the prefetches of vector loads from all but the first vector of a cache line."""
    lines: set[object] = set()
    without: dict[UOp, UOp] = {}
    for load in ast.toposort():
        if _has_prefetch(load) and load.dtype.lanes > load.src[0].src[1].dtype.lanes:
            line = _line_of(load), load.arg
            if line in lines:
                without[load] = load.replace(arg=None)
            lines.add(line)
    return substitute(ast, without) if without else ast


def _line_of(load: UOp) -> object:
    """The memory and the cache line of a load, if its base is the start of one."""
    terms, offset = linear(load.src[0].src[1])
    return load.src[0].src[0], tuple(terms.items()), offset * load.dtype.scalar.size_bytes // LINE_BYTES


def _move_panel_prefetches(ast: UOp) -> UOp:
    """Move the prefetches of a copying loop to the reductions that read the copy."""
    order = ast.toposort()
    copies = {node: loads for node in order if node.op is Ops.AFTER and (loads := _prefetching_loads(node))}
    moved: dict[UOp, list[UOp]] = {}  # a reduction -> prefetches of its loops
    without: dict[UOp, UOp] = {}
    for node in order if copies else []:
        if node.op is not Ops.AFTER or node.src[0].op is not Ops.REG:
            continue
        for panel in _panels(node):
            prefetches = _panel_prefetches(panel, copies[panel], node) if panel in copies else []
            if prefetches:
                moved[node] = [*moved.get(node, []), *prefetches]
                without |= {load: load.replace(arg=None) for load in copies.pop(panel)}
    return _with_prefetches(ast, moved, without)


def _with_prefetches(ast: UOp, prefetches: Mapping[UOp, Sequence[UOp]], without: Mapping[UOp, UOp]) -> UOp:
    """Insert the prefetches of reduction loops and replace the loads that requested them."""
    done: dict[UOp, UOp] = {ast: ast}
    for node in ast.toposort() if without else []:
        new = with_sources(without.get(node, node), tuple(done[s] for s in node.src))
        if node in prefetches:
            more = [substitute(prefetch, done) for prefetch in prefetches[node]]
            new = new.replace(src=(*new.src[:2], *more, *new.src[2:]), arg=node.arg + len(more))
        done[node] = new
    return done[ast]


def _prefetch_gathers(ast: UOp) -> UOp:
    """Prefetch gathered data with the index that is loaded `bytes` later. The next panel of a copy has the same one."""
    order = ast.toposort()
    copies = [node for node in order if node.op is Ops.AFTER and node.src[0].op is Ops.LOCAL]
    copied = {part for copy in copies for part in copy.toposort() if not part.ranges <= copy.ranges}
    loads = [node for node in order if _has_prefetch(node) and node not in copied and _lookups(node)]
    depths, prefetches = loop_depths(ast) if loads else {}, []
    for load in loads:
        index = load.src[0]
        loop = max((r for lookup in _lookups(load) for r in lookup.ranges), key=lambda r: depths[r])
        same = [one for one in loads if one.src[0].src[0] is index.src[0]]
        inside = prod(iterations(r) for r in load.ranges if depths[r] > depths[loop])
        step = inside * sum(one.dtype.size_bytes for one in same)
        later = (loop + -(-load.arg[0] // step)).alu(Ops.MIN, loop.src[0] - 1)
        prefetched = index.replace(src=(index.src[0], substitute(index.src[1], {loop: later})))
        prefetches.append(UOp(Ops.PREFETCH, dtypes.void, (prefetched,), 0))
    ast = substitute(ast, {load: load.replace(arg=None) for load in loads})
    return ast.replace(src=(*ast.src, *prefetches))


def _has_prefetch(node: UOp) -> bool:
    """True if it is a load that requests a prefetch."""
    return node.op is Ops.LOAD and type(node.arg) is tuple


def _lookups(load: UOp) -> list[UOp]:
    """The loads, once in each iteration of some loop, that say where this one finds its elements."""
    index = load.src[0].src[1]
    found = [node for node in index.toposort() if node.op is Ops.LOAD and node.ranges]
    return found if index.dtype.lanes == 1 else []


def _prefetching_loads(copy: UOp) -> list[UOp]:
    """Return the loads of a copying pass over one loop that request prefetches, one for each cache line."""
    loops = closed_ranges(copy)
    if len(loops) != 1 or copy.src[0].op is not Ops.LOCAL:
        return []
    inside = (node for effect in copy.src[1:-1] for node in effect.toposort(stop=lambda u: loops[0] not in u.ranges))
    lines: dict[object, UOp] = {}
    for load in inside:
        if _has_prefetch(load) and load.dtype.lanes > load.src[0].src[1].dtype.lanes:
            lines.setdefault(_line_of(load), load)
    return list(lines.values())


def _panels(total: UOp) -> Iterable[UOp]:
    """Return the copies that the loops of a reduction read."""
    loops = closed_ranges(total)
    inside = total.src[1].toposort(stop=lambda u: u.ranges.isdisjoint(loops))
    return dict.fromkeys(node.src[0].src[0] for node in inside if node.op is Ops.LOAD and len(loops) == 1)


def _panel_prefetches(panel: UOp, loads: list[UOp], total: UOp) -> list[UOp]:
    """Return prefetches for the reduction loop: the cache lines of an iteration are divided among the tiles that
    read the panel."""
    (copying,), (loop,) = closed_ranges(panel), closed_ranges(total)
    tiles = sorted(total.ranges - panel.ranges, key=lambda r: str(r.arg[0]))
    if iterations(copying) != iterations(loop) or not panel.ranges <= total.ranges:
        return []
    count, number = 1, loop.like(0)
    for tile in tiles:
        number, count = number * iterations(tile) + tile, count * iterations(tile)
    share = -(-len(loads) // count)
    prefetches: list[UOp] = []
    for first in range(share):
        mine = loads[first::share]
        index = mine[0].src[0]
        offsets = [simplify(one.src[0].src[1] - index.src[1]) for one in mine]
        if any(not other.is_const for other in offsets) or len({one.src[0].src[0] for one in mine}) > 1:
            return []
        offset = offsets[0]
        for nth, other in enumerate(offsets[1:], 1):
            offset = (number < -(-nth * count // len(mine))).where(offset, other)
        gates = [gate for one in mine for gate in one.src[0].src[2:]]  # past a row's end only some are out of bounds
        where = substitute(index.replace(src=(*index.src[:2], *gates[:1])), {copying: loop})
        where = where.replace(src=(where.src[0], where.src[1] + offset, *where.src[2:]))
        prefetches.append(UOp(Ops.PREFETCH, dtypes.void, (where,), mine[0].arg[0]))
    return prefetches


def _prefetch_tiles(ast: UOp) -> UOp:
    """Prefetch results that will be written, and scalars that a reduction reads, in the reduction loop, a few cache
    lines in each iteration."""
    sums: dict[tuple[UOp, ...], UOp] = {}  # the first of those with the same loops
    wanted: dict[_Lines, set[int]] = {}
    without: dict[UOp, UOp] = {}
    for node in ast.toposort():
        if node.op is Ops.STORE and node.arg == "prefetchw":
            without[node] = node.replace(arg=None)
            found = [n for n in node.src[1].toposort() if n.op is Ops.AFTER and n.src[0].op is Ops.REG]
            found = [n for n in found if node.src[0].ranges <= n.ranges]  # others serve several tiles
            if found:
                _note(wanted, sums[closed_ranges(found[-1])], node)
        elif node.op is Ops.AFTER and node.src[0].op is Ops.REG:
            total, loop = sums.setdefault(closed_ranges(node), node), closed_ranges(node)[0]
            for load in node.src[1].toposort(stop=lambda u, loop=loop: loop not in u.ranges):  # type: ignore[misc]
                if _has_prefetch(load) and load.dtype.lanes == 1:
                    without[load] = load.replace(arg=None)
                    _note(wanted, total, load)
    prefetches: dict[UOp, list[UOp]] = {}
    for key, lines in wanted.items():
        prefetches.setdefault(key[0], []).extend(_spread(key, sorted(lines)))
    return _with_prefetches(ast, prefetches, without)


def _note(wanted: dict[_Lines, set[int]], total: UOp, access: UOp) -> None:
    """Add the cache lines that a LOAD or STORE accesses over the reduction loop, numbered from their base."""
    memory, index, loop = memory_of(access.src[0]), access.src[0].src[1], closed_ranges(total)[0]
    if len(closed_ranges(total)) > 1 or not loop.src[0].is_const or index.dtype.lanes > 1:
        return
    last = {atom: atom.src[0] for atom in linear(index)[0] if atom.op is Ops.MIN}  # as if no tile ended early
    terms, offset = linear(simplify(substitute(index, last)))
    step, count = terms.get(loop, 0), iterations(loop) if loop in terms else 1
    base = from_linear({atom: k for atom, k in terms.items() if atom is not loop}, 0, dtypes.index)
    unit = LINE_BYTES // memory.dtype.scalar.size_bytes
    steps = (*range(0, count, max(1, unit // max(1, abs(step)))), count - 1)
    key = (total, memory, base, access.arg[0] if access.op is Ops.LOAD else None)
    wanted.setdefault(key, set()).update((offset + step * n) // unit for n in steps)


def _spread(key: _Lines, lines: list[int]) -> list[UOp]:
    """Spread the prefetches over the reduction loop; none if the lines are not a regular grid."""
    (total, memory, base, ahead), unit = key, LINE_BYTES // key[1].dtype.scalar.size_bytes
    row = next((n for n in range(2, len(lines)) if lines[n] - lines[n - 1] != lines[1] - lines[0]), len(lines))
    step, pitch = (lines[n] - lines[0] if n < len(lines) else 0 for n in (1, row))
    if any(line != lines[0] + n // row * pitch + n % row * step for n, line in enumerate(lines)):
        return []
    loop = closed_ranges(total)[0]
    share = -(-len(lines) // iterations(loop))
    prefetches: list[UOp] = []
    for n in range(share):
        number = (loop * share + n) * len(lines) // (iterations(loop) * share)
        line = number * step if row == len(lines) else number // row * pitch + number % row * step
        prefetches.append(_prefetch(memory, base + (line + lines[0]) * unit, ahead))
    return prefetches


def _prefetch(memory: UOp, index: UOp, ahead: int | None) -> UOp:
    index, end = simplify(index), memory.arg[1]
    inside = index.alu(Ops.MIN, end - 1) if index.bounds[1] >= end else index
    return UOp(Ops.PREFETCH, dtypes.void, (UOp(Ops.INDEX, memory.dtype, (memory, inside)),), ahead)

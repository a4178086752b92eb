"""Output loops are split where a gate changes its value: concatenated tensors, borders, the last block.

When: before expand. Why there: blocks, instances and lanes of a loop still share one condition. Most sub-ranges then
have whole blocks and need no gate; where a gate changes inside a block, masks remain. Loops around reductions or
kernel-local buffers are not split: their code would be duplicated. In a sub-range of one iteration the loop's number is
a constant for values; the stored index keeps the loop, so that one thread runs it. Guarantees: the same elements are
written, each once, with the same values. Tests: tests/compiler/kernel/test_partition_loops.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, index_const, simplify, substitute

from .facts import iterations, order_of, output_loops, reordered, stored
from .trim_loops import asked

__all__ = ["partition_loops"]

_MOST_NODES = 4000  # of all sub-ranges, unrolled instances included
_LANES = 16  # elements of the widest vector: of many pieces, each has at least as many
_SHARED = 1.25  # nodes of both halves of a concatenated tensor, relative to the whole: only indices are copied


def partition_loops(ast: UOp) -> UOp:
    """Return the kernel with output loops split into sub-ranges."""
    order, outputs = ast.toposort(), output_loops(ast)
    if any(not store.src[0].ranges.issuperset(outputs) for store in ast.src):
        return ast
    around = {r for node in order if closed_ranges(node) or node.op in (Ops.AFTER, Ops.CARRY) for r in node.ranges}
    inner = [loop for position, loop in enumerate(outputs) if around.isdisjoint(outputs[position:])]
    copies = prod(iterations(r) for store in ast.src[:1] for r in store.ranges if r.arg[1] == AxisKind.UNROLL)
    names = list(order_of(ast))
    stores = _in_parts(ast.src, inner, names, _MOST_NODES // (copies * len(order)))
    return ast if stores is ast.src else reordered(ast.replace(src=stores), names)


def _in_parts(stores: tuple[UOp, ...], loops: Sequence[UOp], names: list[str], most: int) -> tuple[UOp, ...]:
    """Return the stores once for each sub-range of these loops, outermost first, but at most `most` times; the names
    of new loops are appended. A tensor concatenated from more pieces is halved, and its halves again."""
    for position, loop in enumerate(loops):
        ends, left = _ends(stores, loop), most
        if not ends or most < 1:
            continue
        if len(ends) >= most:
            if prod(map(iterations, stores[0].ranges.difference(loops[:position]))) < _LANES * (len(ends) + 1):
                continue
            ends, left = [ends[len(ends) // 2]], 4 * most  # a half of a concatenated tensor has half the nodes
            halves = [_part(stores, loops[position:], [*names], bounds)[0] for bounds in _sub_ranges(ends, loop)]
            if sum(map(_nodes, halves)) > _SHARED * _nodes(stores):
                continue
        parts: list[UOp] = []
        for bounds in _sub_ranges(ends, loop):
            part, inner = _part(stores, loops[position:], names, bounds)
            # without the last block, block numbers are no longer clamped, and the same loop may have more ends
            parts += _in_parts(part, inner, names, left // (len(ends) + 1))
        return tuple(parts)
    return stores


def _sub_ranges(ends: Sequence[int], loop: UOp) -> Iterable[tuple[int, int]]:
    """Return the first iteration of each sub-range, and that of the next one."""
    return pairwise((0, *ends, iterations(loop)))


def _part(
    stores: tuple[UOp, ...], loops: Sequence[UOp], names: list[str], bounds: tuple[int, int]
) -> tuple[tuple[UOp, ...], list[UOp]]:
    """The stores for iterations from the first to before the last of the outermost of these loops, and its loops."""
    (loop, *inner), (first, last) = loops, bounds
    begin = (sum(loop.arg[2:]) + first,) if loop.arg[1] == AxisKind.THREAD else ()
    own = _new_loop(loop, names, index_const(last - first), *begin)  # before those inside it
    table = {r: _new_loop(r, names, r.src[0]) for r in inner}
    indices = table | {loop: own + first}
    values = table | {loop: index_const(first)} if last - first == 1 else indices
    part = stored(simplify(_substituted(store, indices, values)) for store in stores)
    return part, [own, *table.values()]


def _nodes(stores: Sequence[UOp]) -> int:
    """Count the nodes of the stores that are not constants."""
    return len({u for store in stores for u in store.toposort() if u.op is not Ops.CONST})


def _substituted(store: UOp, indices: Mapping[UOp, UOp], values: Mapping[UOp, UOp]) -> UOp:
    """Substitute in the store with one table for its index, which keeps its loops, and one for its values."""
    memory, index, *gate = store.src[0].src
    there = store.src[0].replace(src=(memory, substitute(index, indices), *(substitute(g, values) for g in gate)))
    return store.replace(src=(there, substitute(store.src[1], values)))


def _new_loop(loop: UOp, names: list[str], size: UOp, *first: int) -> UOp:
    """Make a new loop; for a THREAD loop with the first iteration of this slice."""
    names.append(f"{loop.arg[0]}.p{len(names)}")
    return loop.replace(src=(size,), arg=(names[-1], loop.arg[1], *first))


def _ends(stores: tuple[UOp, ...], loop: UOp) -> list[int]:
    """The iterations, but for the first, from which on the answer of a comparison is known or no longer known."""
    found: set[int] = set()
    if loop.arg[1] not in (AxisKind.LOOP, AxisKind.THREAD) or not loop.src[0].is_const:
        return []
    size = iterations(loop)
    for node in {u for store in stores for u in store.toposort(stop=lambda u: loop not in u.ranges)}:
        step, rest, offset = asked(node, loop)
        if not step or any(loop in atom.ranges for atom in rest):
            continue
        bounds = [sorted(factor * int(bound) for bound in atom.bounds) for atom, factor in rest.items()]
        least, most = (offset + sum(b[side] for b in bounds) for side in (0, 1))
        if step < 0:  # reversed comparison: not (-x - 1 < 0)
            least, most = -1 - most, -1 - least
        ends = [min(max(-(edge // abs(step)), 0), size) for edge in (most, least)]  # before: step * loop + edge < 0
        if 2 * (ends[1] - ends[0]) <= size:  # and not known in most of the loop
            found.update(ends)
    return sorted(found - {0, size})

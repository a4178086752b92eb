"""Unrolling: UNROLL and RFACTOR loops become instances of their body.

When: after the optimizer, before vectors. Why there: instances share values that are invariant in the loop, because
equal nodes are one node; a register tile of a matrix product needs nothing else. Assumes: these loops have constant
sizes. Guarantees: no UNROLL or RFACTOR range is left. Tests: tests/compiler/kernel/test_expand_loops.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from operator import mul

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, dtypes, from_linear, linear, rebuilt, simplify, with_sources

from .facts import combined, neutral_element, stored
from .reduce_loops import separate_loops

__all__ = ["expand_loops"]


def expand_loops(ast: UOp) -> UOp:
    """The kernel without UNROLL and RFACTOR loops."""
    root = rebuilt(ast, lambda _, new: _unroll_reduction(new) if closed_ranges(new) else new)
    stores = stored(copy for store in root.src for copy in _copies(store, _tile(store)))
    return separate_loops(simplify(root.replace(src=stores)))


def _loops_of_kind(ranges: Iterable[UOp], kind: AxisKind) -> list[UOp]:
    return sorted((r for r in ranges if r.arg[1] == kind), key=lambda r: str(r.arg[0]))


def _tile(store: UOp) -> list[UOp]:
    """Return the loops of a register tile, the longest as the outermost.

    A value of the outer loop is used by the next few instances only. Those of the inner loops stay in registers.
    """
    return sorted(_loops_of_kind(store.ranges, AxisKind.UNROLL), key=lambda r: -int(r.src[0].arg))


def _copies(node: UOp, loops: list[UOp]) -> list[UOp]:
    """The node once for every iteration of these loops.

    A node is copied for the loops that it depends on: in a tile of 8 by 4, an address of the 8-loop 8 times, not 32.
    """
    if not loops:
        return [node]
    sizes = [range(loop.src[0].arg) for loop in loops]
    # of each node: the indices of the loops it depends on, and an instance for each iteration of these
    done: dict[UOp, tuple[list[int], dict[tuple[int, ...], UOp]]] = {}
    for below in node.toposort(stop=lambda u: u.ranges.isdisjoint(loops) or _is_affine(u, loops)):
        own_loops = [number for number, loop in enumerate(loops) if loop in below.ranges]
        points = list(product(*(sizes[number] for number in own_loops)))
        if not own_loops:
            copies = [below]
        elif _is_affine(below, loops):
            terms, offset = linear(below)
            rest = {atom: k for atom, k in terms.items() if atom not in loops}
            steps = [terms.get(loops[number], 0) for number in own_loops]
            copies = [from_linear(rest, offset + sum(map(mul, steps, point)), below.dtype) for point in points]
        else:
            sources = [(done[s][1], [own_loops.index(number) for number in done[s][0]]) for s in below.src]
            copies = [
                with_sources(below, tuple([instances[*(point[at] for at in dims)] for instances, dims in sources]))
                for point in points
            ]
        done[below] = own_loops, dict(zip(points, copies, strict=True))
    own_loops, instances = done[node]
    return [simplify(instances[*(point[number] for number in own_loops)]) for point in product(*sizes)]


def _is_affine(u: UOp, loops: list[UOp]) -> bool:
    """True for an affine index in these loops."""
    return u.dtype is dtypes.index and all(atom in loops or atom.ranges.isdisjoint(loops) for atom in linear(u)[0])


def _unroll_reduction(node: UOp) -> UOp:
    """Unroll the loops of a REDUCE or AFTER: UNROLL repeats its values, RFACTOR the whole reduction."""
    closed = closed_ranges(node)
    repeated = _loops_of_kind(closed, AxisKind.UNROLL)
    rest = tuple(r for r in closed if r not in repeated)
    head = node.src[: len(node.src) - len(closed)]
    if node.op is Ops.AFTER:
        effects = [copy for effect in head[1:] for copy in _copies(effect, repeated)]
        return node.replace(src=(head[0], *effects, *rest), arg=len(effects))
    values = [copy for value in head for copy in _copies(value, repeated)]
    groups = _loops_of_kind(rest, AxisKind.RFACTOR)
    loops = tuple(r for r in rest if r not in groups)
    several = zip(*(_copies(value, groups) for value in values), strict=True)
    op, parts = node.arg[0], [_unrolled_reduce(node, list(part), loops) for part in several]
    while len(parts) > 1:
        parts = [a.alu(op, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + parts[len(parts) // 2 * 2 :]
    return parts[0]


def _unrolled_reduce(node: UOp, values: list[UOp], loops: tuple[UOp, ...]) -> UOp:
    op = node.arg[0]
    neutral = neutral_element(op, node)
    values = [value for value in values if value is not neutral] or [neutral]  # drop instances whose mask is false
    is_short = not loops and len(values) > 1 and node.dtype is dtypes.int32  # candidates for dot products
    if (loops or is_short) and values != [neutral]:
        return UOp(Ops.REDUCE, node.dtype, (*values, *loops), (op, len(values)))
    return combined(op, values)

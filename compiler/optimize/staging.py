"""Kernel-local buffers for values loaded over some loops: one element per index, not per iteration. Also the opposite:
a row buffer of the kernel in its output.

A window that slides over rows reads an element once for each of its positions: i + k, for neighbours i and the window's
k. Loops that move along one line of the buffer, and through the same gates, become one axis of the copy. The gates are
evaluated while copying, and readers of the copy have none. Used by the actions `stage` and `buffer_in_output`. Tests:
tests/compiler/optimize/test_staging.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernmill.ir import (
    ALIAS_BYTES,
    BANK_BYTES,
    LINE_BYTES,
    AxisKind,
    Ops,
    UOp,
    closed_ranges,
    dtypes,
    index_const,
    linear,
    make_range,
    memory_of,
    simplify,
    substitute,
)

from ..kernel.facts import gated, iterations, step_of

__all__ = ["in_output", "share_axis", "staged", "unpacked"]


@dataclass(slots=True)
class _Axis:
    """Loops over the same elements, with their strides in units of the axis; the first stride is 1 or -1."""

    loops: list[UOp]
    steps: list[int]
    unit: int = 1
    least: int = 0  # where the axis begins, in these units

    @property
    def size(self) -> int:
        return 1 + sum(abs(step) * (iterations(loop) - 1) for loop, step in zip(self.loops, self.steps, strict=True))

    def position(self) -> UOp:
        """Return the position of an iteration of the loops on the axis."""
        total = index_const(-self.least)
        for loop, step in zip(self.loops, self.steps, strict=True):
            total = total + loop * step
        return total


def staged(
    value: UOp, loops: Sequence[UOp], name: str, mark: str, *, has_gaps: bool = True
) -> tuple[UOp, dict[str, str]]:
    """Return the value, read from a kernel-local buffer that copies of the loops fill, and the name of each loop's
    copy. Copies are named with the mark; loops on the same axis share one.

    Work-items share the buffer if one of the loops is local. If they read along a row and store along a column, each
    column is padded against bank conflicts. `has_gaps`: padding is allowed (not if a matrix unit reads it).
    """
    is_load, is_shared = value.op is Ops.LOAD, any(loop.arg[1] == AxisKind.LOCAL for loop in loops)
    value = _by_neighbours(value, loops) if is_load else value
    apart = {loop: step_of(value.src[0].src[1], loop) if is_load else 0 for loop in loops}
    nearest = min((loop for loop in loops if apart[loop]), key=lambda loop: apart[loop], default=loops[-1])
    axes = _axes(value, loops) if is_load else [_Axis([loop], [1]) for loop in loops]
    table: dict[UOp, UOp] = {}
    copies: dict[UOp, int] = {}
    made: dict[str, str] = {}
    kinds = _copy_kinds([(axis.loops, min(apart[loop] for loop in axis.loops)) for axis in axes])
    index, here = index_const(0), index_const(0)
    size = 1  # elements from one index on the axis to the next
    for axis, kind in zip(reversed(axes), reversed(kinds), strict=True):
        first = min(axis.loops, key=loops.index)
        count = first.src[0] if len(axis.loops) == 1 else index_const(axis.size)
        copy = make_range(f"{first.arg[0]}{mark}", count, kind)
        copies[copy] = min(apart[loop] for loop in axis.loops)
        made |= {str(loop.arg[0]): str(copy.arg[0]) for loop in axis.loops}
        table |= dict.fromkeys(axis.loops, index_const(0))
        table[axis.loops[0]] = (copy + axis.least) * axis.steps[0]
        if is_shared and first is nearest and axis is not axes[-1] and has_gaps:
            size += BANK_BYTES // value.dtype.size_bytes
        elif not is_shared and size * value.dtype.size_bytes % ALIAS_BYTES == 0:
            size += LINE_BYTES // value.dtype.size_bytes
        index, here = copy * size + index, axis.position() * size + here
        size *= axis.size
    around = sorted(value.ranges.difference(loops), key=lambda r: str(r.arg[0]))
    memory = UOp(Ops.LOCAL, value.dtype, tuple(around), (name, size))
    table |= {node: node for node in value.toposort() if node.ranges.isdisjoint(loops)}  # they may be closed there
    store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, value.dtype, (memory, index)), substitute(value, table)))
    in_order = list(copies)[::-1]
    walked = sorted(in_order, key=lambda copy: -copies[copy])  # in memory order, adjacent elements last
    filled = UOp(Ops.AFTER, value.dtype, (memory, store, *walked), 1)
    return UOp(Ops.LOAD, value.dtype, (UOp(Ops.INDEX, value.dtype, (filled, here)),)), made


def unpacked(ast: UOp, loads: Sequence[UOp]) -> list[UOp]:
    """Return the values computed from the loads alone, before they get wider: numbers unpacked from bytes, or the
    loads."""
    order = ast.toposort()
    made = {load: load.ranges for load in loads}  # and the loops of the loads behind
    for node in order:
        behind = [made[s] for s in node.src if s in made]
        is_made = node.op.is_elementwise or node.op in (Ops.INDEX, Ops.LOAD)  # or looked up
        if is_made and behind and all(s in made or _is_plain(s) for s in node.src):
            around = frozenset[UOp]().union(*behind)
            if around in behind:  # parts of one number, not of a row and a column
                made[node] = around
    needed = {s for node in order if node not in made for s in node.src if s in made}
    return list(dict.fromkeys(_unlengthened(node) for node in order if node in needed))


def _is_plain(u: UOp) -> bool:
    """True if it consists of constants and loops, or is memory."""
    return all(n.op.is_elementwise or n.op in (Ops.CONST, Ops.RANGE, Ops.PARAM) for n in u.toposort())


def _unlengthened(u: UOp) -> UOp:
    while u.op is Ops.CAST and u.src[0].dtype.size_bytes < u.dtype.size_bytes:
        u = u.src[0]
    return u


def in_output(ast: UOp, loop: UOp) -> UOp:
    """Move the row that the loop writes into the output: an element is stored where the result that is computed from it
    will be.

    Raises:
        ValueError: the output reads other elements of the row than the one it replaces, or has a different dtype.
    """
    order, store = ast.toposort(), ast.src[0]
    row = next((node for node in order if node.op is Ops.AFTER and loop in closed_ranges(node)), None)
    if row is None or row.src[0].op is not Ops.LOCAL or row.arg != 1:
        raise ValueError(f"{loop.arg[0]} does not write a row buffer")
    address, local, (filled, value) = store.src[0], row.src[0], row.src[1].src
    along = [r for r in address.ranges if r not in local.src]
    is_one = len(ast.src) == 1 and len(address.src) == 2 and local.dtype is address.dtype
    if not is_one or len(along) != 1 or filled.src[1] is not loop or along[0].src[0] is not loop.src[0]:
        raise ValueError("the only output must have rows of the same size and dtype")
    memory, reads = memory_of(address), [n for n in order if n.op is Ops.INDEX and n.src[0] is row]
    if any(n.op is Ops.LOAD and memory_of(n.src[0]) is memory for n in order):
        raise ValueError("the kernel reads the old values of its output")
    inside = [n for n in order if closed_ranges(n) and along[0] in n.ranges and row in n.toposort()]
    if inside or any(along[0] in n.ranges and (n.src[1] is not along[0] or len(n.src) > 2) for n in reads):
        raise ValueError("the output would read elements of the row that it has already overwritten")

    def moved(index: UOp) -> UOp:
        return substitute(address.src[1], {along[0]: index})

    put = UOp(Ops.STORE, dtypes.void, (address.replace(src=(memory, moved(loop))), value))
    there = row.replace(src=(memory, put, *closed_ranges(row)))
    table = {n: n.replace(src=(there, moved(n.src[1]), *n.src[2:])) for n in reads}
    table[address] = address.replace(src=(there, address.src[1]))  # after the row, even if none of it is read there
    return simplify(substitute(ast, table))


def _by_neighbours(load: UOp, loops: Sequence[UOp]) -> UOp:
    """Replace the end of each element by one gate per vector, if loops copy adjacent elements up to a last one."""
    address = load.src[0]
    for atom in linear(address.src[1])[0]:
        is_end = atom.op is Ops.MIN and all(part.op in (Ops.RANGE, Ops.MIN) for part in linear(atom.src[0])[0])
        if is_end and not atom.ranges.isdisjoint(loops):  # with other clamps, elements past the end repeat the last one
            index, last = atom.src
            open_index = address.replace(
                src=(address.src[0], substitute(address.src[1], {atom: index}), *address.src[2:])
            )
            return load.replace(src=(gated(open_index, index < last + 1),))
    return load


def share_axis(load: UOp, names: Sequence[str]) -> list[list[str]]:
    """Return the groups of loops that share an axis of the copy: one loop's next element was read by another."""
    loops = sorted((r for r in load.ranges if r.arg[0] in names), key=lambda r: names.index(r.arg[0]))
    return [[str(loop.arg[0]) for loop in axis.loops] for axis in _axes(load, loops) if len(axis.loops) > 1]


def _copy_kinds(axes: Sequence[tuple[list[UOp], int]]) -> list[AxisKind]:
    """Return the kinds of loops that share an axis, given the distance of neighbours. A loop keeps its own kind, except
    that an unrolled loop around a loop of smaller stride becomes a plain loop. Unrolling it would only add code."""
    kinds = [AxisKind(loops[0].arg[1]) if len(loops) == 1 else AxisKind.REDUCE for loops, _ in axes]
    for number, (loops, _) in enumerate(axes):  # work-items fill a buffer together
        kinds[number] = AxisKind.LOCAL if any(r.arg[1] == AxisKind.LOCAL for r in loops) else kinds[number]
    kept = (AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.LOCAL)
    nearest = min((apart for kind, (_, apart) in zip(kinds, axes, strict=True) if kind not in kept), default=0)
    return [
        kind if kind in kept and not (kind is AxisKind.UNROLL and 0 < nearest < apart) else AxisKind.REDUCE
        for kind, (_, apart) in zip(kinds, axes, strict=True)
    ]


def _axes(load: UOp, loops: Sequence[UOp]) -> list[_Axis]:
    """The axes of the copy, each where the last of its loops is named."""
    forms = _forms(load.src[0])
    lines: dict[tuple[int, ...], list[tuple[int, UOp]]] = {}
    axes: list[_Axis] = []
    for loop in loops:
        way = _way(loop, forms)
        if way is None or not loop.src[0].is_const:
            axes.append(_Axis([loop], [1]))
        else:
            lines.setdefault(way[1], []).append((way[0], loop))
    for line in lines.values():
        found: list[_Axis] = []
        for step, loop in sorted(line, key=lambda item: abs(item[0])):
            last = found[-1] if found else None
            if last is not None and step % last.unit == 0 and abs(step) < last.unit * last.size:
                last.loops.append(loop)
                last.steps.append(step // last.unit)
            else:  # the axis may run against the loop
                found.append(_Axis([loop], [1 if step > 0 else -1], abs(step)))
        axes += found
    for axis in axes:
        if len(axis.loops) == 1:  # in the order of the loop, also where that runs backwards
            axis.steps = [1]
        moved = zip(axis.loops, axis.steps, strict=True)
        axis.least = sum(step * (iterations(loop) - 1) for loop, step in moved if step < 0)
    return sorted(axes, key=lambda axis: max(loops.index(loop) for loop in axis.loops))


def _forms(index: UOp) -> list[UOp]:
    """Return the expressions that decide what is read: the index, and both sides of every comparison of its gate."""
    forms, gates = [index.src[1]], list(index.src[2:])
    while gates:
        gate = gates.pop()
        if gate.op in (Ops.AND, Ops.OR, Ops.LT, Ops.LE, Ops.EQ, Ops.NE):
            (gates if gate.dtype.is_bool and gate.src[0].dtype.is_bool else forms).extend(gate.src)
        else:
            forms.append(gate)
    return forms


def _way(loop: UOp, forms: Sequence[UOp]) -> tuple[int, tuple[int, ...]] | None:
    """Return how far and in which direction an iteration of the loop moves all expressions; None if one is not
    affine in it."""
    steps: list[int] = []
    for form in forms:
        terms, _ = linear(form)
        if any(atom is not loop and loop in atom.ranges for atom in terms):
            return None
        steps.append(terms.get(loop, 0))
    if not steps[0]:
        return None
    step = math.gcd(*steps) * (1 if steps[0] > 0 else -1)
    return step, tuple(s // step for s in steps)

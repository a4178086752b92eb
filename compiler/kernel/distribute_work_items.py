"""Distribution over work-items: who runs which iteration, and who fills shared memory.

When: once loops are split and trimmed, before they are unrolled. Every value then depends on
at most one LOCAL loop, whose variable is the id of the work-item. Output loops become quotients and remainders of it.
An AFTER that closes LOCAL loops becomes an array that the work-items fill together. Values outside of LOCAL loops are
computed by every work-item alike; only work-item 0 stores them. `place_barriers` synchronizes them. Tests:
tests/compiler/kernel/test_distribute_work_items.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, make_range, memory_of, substitute

from .facts import gated, order_of, output_loops, reordered, step_of

__all__ = ["distribute_work_items", "fills_shared", "is_local"]

_COPIED = 8  # unrolled rounds of a copy to shared memory, so that their loads overlap


def distribute_work_items(ast: UOp) -> UOp:
    """Return the kernel with one LOCAL loop around everything that differs between work-items."""
    order = ast.toposort()
    fills = [node for node in order if fills_shared(node)]
    outputs = [loop for loop in output_loops(ast) if is_local(loop)]
    if not outputs and not fills:
        return ast
    count = prod(int(loop.src[0].arg) for loop in outputs)
    made = [fill for fill in fills if not (outputs and _is_copy(fill))]  # a copy is dealt out to however many there are
    group = max(count, *(prod(int(r.src[0].arg) for r in closed_ranges(fill) if is_local(r)) for fill in made), 1)
    item = make_range("item", count if outputs else group, AxisKind.LOCAL)
    done: dict[UOp, UOp] = _digits(outputs, item)
    shared = {memory_of(fill) for fill in fills}
    for node in order:
        if node in done:
            continue
        src = tuple(item if node.op is Ops.LOCAL and s in outputs else done[s] for s in node.src)
        new = node.replace(src=src)
        if node.op is Ops.LOCAL:  # separate for two remainders of a work-item id: once for the work-item
            new = new.replace(src=tuple(dict.fromkeys(src)))
        if node in shared:
            new = new.replace(arg=(*node.arg, "shared"))
        elif node in fills:
            new = _dealt(new, group, fills.index(node))
        elif node in ast.src and not any(is_local(r) for r in node.ranges):
            new = new.replace(src=(gated(src[0], item < 1), *src[1:]))
        done[node] = new
    own = {loop.arg[0] for loop in outputs}
    left = (name for name in order_of(ast) if name not in own)
    return reordered(done[ast], (*left, "item"))  # what they share is outside


def fills_shared(node: UOp) -> bool:
    """True if the work-items of a group fill an array together here."""
    return node.op is Ops.AFTER and any(is_local(loop) for loop in closed_ranges(node))


def _is_copy(fill: UOp) -> bool:
    return fill.src[1].src[1].op is Ops.LOAD


def is_local(loop: UOp) -> bool:
    """True if the work-items of a group run a loop."""
    return bool(loop.arg[1] == AxisKind.LOCAL)


def _digits(loops: Sequence[UOp], number: UOp) -> dict[UOp, UOp]:
    """Return the loops as quotients and remainders of a number, the last one fastest."""
    table: dict[UOp, UOp] = {}
    inner = 1
    for loop in reversed(loops):
        digit = number // inner if inner > 1 else number
        inner *= int(loop.src[0].arg)
        table[loop] = digit if loop is loops[0] else digit % int(loop.src[0].arg)
    return table


def _dealt(node: UOp, group: int, number: int) -> UOp:
    """Distribute the loops that fill an array over the work-items, so that neighbours read adjacent elements."""
    closed, effects = closed_ranges(node), node.src[1 : 1 + node.arg]
    inside = effects[0].src[1].toposort(stop=lambda u: u.op is Ops.AFTER)
    indices = [u.src[0].src[1] for u in inside if u.op is Ops.LOAD]
    dealt = [loop for loop in closed if loop.arg[1] != AxisKind.VECTOR and loop.src[0].is_const]
    strides = {loop: min((s for p in indices if (s := step_of(p, loop))), default=1 << 62) for loop in dealt}
    dealt.sort(key=lambda loop: -strides[loop])
    total = prod(int(loop.src[0].arg) for loop in dealt)
    item = make_range(f"item{number}", min(total, group), AxisKind.LOCAL)
    element, loops, rounds = item, [item], -(-total // group)
    if rounds > 1:
        kind = AxisKind.UNROLL if _is_copy(node) and rounds <= _COPIED else AxisKind.REDUCE
        loops.append(make_range(f"round{number}", rounds, kind))
        element = loops[1] * group + item
    is_whole = rounds == 1 or total % group == 0
    here, there = _digits(dealt, element), _digits(dealt, element if is_whole else element.alu(Ops.MIN, total - 1))
    limit, new = None if is_whole else element < total, list[UOp]()
    for store in effects:
        target = gated(substitute(store.src[0], here), limit)
        new.append(store.replace(src=(target, substitute(store.src[1], there))))
    return node.replace(src=(node.src[0], *new, *loops, *(loop for loop in closed if loop not in dealt)))

"""Loop peeling: in the main loop the gate of a reduction is known to be true and is removed; the tail keeps it.

When: after trim_loops. Why there: loop bounds are known, and unrolled instances still share one condition. Guarantees:
the same results. Why: docs/topics/tails-and-masks.md. Tests: tests/compiler/kernel/test_peel_loops.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from kernmill.ir import AxisKind, Ops, UOp, closed_ranges, index_const, make_range, simplify, substitute

from .facts import combined, conjuncts
from .linearize import loop_paths, walked
from .trim_loops import asked, gate_of, greatest

__all__ = ["peel_loops"]


def peel_loops(ast: UOp) -> UOp:
    """Split loops that depend on others into main loop and tail where their gates start to matter."""
    closers: dict[UOp, list[UOp]] = {}
    for node in ast.toposort():
        for loop in walked(closed_ranges(node)):
            if loop.arg[1] == AxisKind.REDUCE and loop.src[0].ranges:
                closers.setdefault(loop, []).append(node)
    paths, fresh = loop_paths(ast) if closers else {}, count()
    for loop in sorted(closers, key=lambda loop: -len(paths[loop])):  # inner ones first: the tail is copied with them
        gates = [part for node in closers[loop] if node.op is Ops.REDUCE for part in conjuncts(gate_of(node))]
        sure = {part: known for part in gates if (known := _known(part, loop, set(paths[loop][:-1]))) is not None}
        if sure and all(walked(closed_ranges(node)) == [loop] for node in closers[loop]):
            ast = _in_two(ast, loop, sure, fresh)
    return simplify(ast) if closers else ast


def _known(part: UOp, loop: UOp, around: set[UOp]) -> UOp | None:
    """Return for how many iterations, from the first on, the comparison is true for everything inside; None: for
    none."""
    step, rest, offset = asked(part, loop)
    most = greatest(rest, offset, around, {}) if step > 0 else None
    return None if most is None or most.bounds[0] >= 0 else (step - 1 - most) // step  # step * loop + most < 0


def _in_two(ast: UOp, loop: UOp, sure: dict[UOp, UOp], fresh: Iterator[int]) -> UOp:
    known = simplify(combined(Ops.MIN, (loop.src[0], *sure.values())).alu(Ops.MAX, index_const(0)))
    size = simplify(loop.src[0] - known)
    first, rest = loop.replace(src=(known,)), make_range(f"{loop.arg[0]}.p{next(fresh)}", size, AxisKind.REDUCE)
    before = {part: part | True for part in sure} | {loop: first}
    last = index_const(int(loop.bounds[1]))  # never less than the sum, which its parts do not show
    behind: dict[UOp, UOp] = {loop: (rest + known).alu(Ops.MIN, last)}
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        new = done[node] = node.replace(src=tuple(done[s] for s in node.src))
        closed = closed_ranges(new)
        if loop not in closed:
            continue
        inside = new.src[: -len(closed)]
        _own_loops(inside, loop, rest, behind, fresh)
        one, other = (
            (*(substitute(s, table) for s in inside), *(own if r is loop else r for r in new.src[-len(closed) :]))
            for table, own in ((before, first), (behind, rest))
        )
        done[node] = new.replace(src=one)
        if size.bounds != (0, 0):  # else the answer was known to the end
            is_sum = new.op is Ops.REDUCE
            more = new.replace(src=other if is_sum else (done[node], *other[1:]))
            done[node] = done[node].alu(new.arg[0], more) if is_sum else more
    return done[ast]


def _own_loops(inside: Iterable[UOp], loop: UOp, rest: UOp, table: dict[UOp, UOp], fresh: Iterator[int]) -> None:
    """Give loops and buffers inside the loop separate copies in its tail."""
    changing = [u for one in inside for u in one.toposort() if loop in u.ranges or loop in u.src]
    for r in (r for node in changing for r in closed_ranges(node)):
        if r not in table:
            table[r] = make_range(f"{r.arg[0]}.p{next(fresh)}", substitute(r.src[0], table), AxisKind(r.arg[1]))
    for node in changing:
        if node.op is Ops.LOCAL and node not in table:
            table[node] = node.replace(src=tuple(rest if s is loop else table.get(s, s) for s in node.src))

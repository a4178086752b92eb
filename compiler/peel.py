"""A loop that asks the same question in each iteration runs in two parts: where the answer is known, and the rest.

When: after loops were trimmed. Why there: a loop that ends with a mask asks the mask only near that end; the blocks
before it need no comparison, and theirs are most. Guarantees: the same results, sums of floats in another order; a
row that is kept is filled by both parts. Tests: tests/compiler/test_peel.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernmill.ir import (
    AxisKind,
    Ops,
    UOp,
    closed_ranges,
    const,
    dtypes,
    index_const,
    linear,
    make_range,
    simplify,
    substitute,
    with_sources,
)

from .linearize import loop_paths, walked
from .trim import conjuncts, gate_of, greatest

__all__ = ["peel_loops"]


def peel_loops(ast: UOp) -> UOp:
    """The kernel with loops cut in two where their gates begin to matter."""
    order = ast.toposort()
    closers: dict[UOp, list[UOp]] = {}
    for node in order:
        for loop in walked(closed_ranges(node)):
            if loop.arg[1] == AxisKind.REDUCE and loop.src[0].ranges:
                closers.setdefault(loop, []).append(node)
    closers = {r: nodes for r, nodes in closers.items() if all(walked(closed_ranges(n)) == [r] for n in nodes)}
    if not closers:
        return ast
    paths = loop_paths(ast)
    names = {str(node.arg[0]) for node in order if node.op is Ops.RANGE}
    for loop in sorted(closers, key=lambda loop: -len(paths[loop])):  # inner ones first: the rest is copied with them
        gates = [part for node in closers[loop] if node.op is Ops.REDUCE for part in conjuncts(gate_of(node))]
        sure = {part: count for part in gates if (count := _sure(part, loop, set(paths[loop][:-1]))) is not None}
        if sure:
            ast = _in_two(ast, loop, sure, names)
    return simplify(ast)


def _sure(part: UOp, loop: UOp, around: set[UOp]) -> UOp | None:
    """In how many iterations, from the first on, the comparison holds for all that is inside the loop."""
    if part.op not in (Ops.LT, Ops.LE) or part.src[0].dtype.kind.value != "index":
        return None
    terms, offset = linear(part.src[0] - part.src[1])
    step = terms.get(loop, 0)
    rest = {atom: factor for atom, factor in terms.items() if atom is not loop}
    most = greatest(rest, offset - (part.op is Ops.LE), around, {}) if step > 0 else None
    return None if most is None else (step - 1 - most) // step  # step * loop + most < 0


def _in_two(ast: UOp, loop: UOp, sure: dict[UOp, UOp], names: set[str]) -> UOp:
    count = loop.src[0]
    for one in sure.values():
        count = count.alu(Ops.MIN, one)
    count = simplify(count.alu(Ops.MAX, index_const(0)))
    first = loop.replace(src=(count,))
    size = simplify(loop.src[0] - count)
    rest = make_range(_name(loop, names), size, AxisKind.REDUCE)
    before = {part: const(dtypes.bool, True) for part in sure} | {loop: first}
    last = index_const(int(loop.bounds[1]))  # never less than the sum, which no one can read off its parts
    behind: dict[UOp, UOp] = {loop: (rest + count).alu(Ops.MIN, last)}
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        new = done[node] = with_sources(node, tuple(done[s] for s in node.src))
        closed = closed_ranges(new)
        if loop not in closed:
            continue
        inside, loops = new.src[: -len(closed)], new.src[-len(closed) :]
        _copy_inner(inside, loop, rest, behind, names)
        parts = [
            (*(substitute(s, table) for s in inside), *(own if r is loop else r for r in loops))
            for table, own in ((before, first), (behind, rest))
        ]
        done[node] = new.replace(src=parts[0])
        if size.bounds == (0, 0):
            continue  # the answer was known to the end
        if new.op is Ops.REDUCE:
            done[node] = done[node].alu(new.arg[0], new.replace(src=parts[1]))
        else:
            done[node] = new.replace(src=(done[node], *parts[1][1:]))
    return done[ast]


def _copy_inner(inside: Iterable[UOp], loop: UOp, rest: UOp, table: dict[UOp, UOp], names: set[str]) -> None:
    """Loops and memory inside the loop get others of their own in its second part."""
    changing = [u for one in inside for u in one.toposort() if loop in u.ranges or loop in u.src]
    for node in changing:
        for r in closed_ranges(node):
            if r not in table:
                table[r] = make_range(_name(r, names), substitute(r.src[0], table), AxisKind(r.arg[1]))
    for node in changing:
        if node.op is Ops.LOCAL and node not in table:
            table[node] = node.replace(src=tuple(rest if s is loop else table.get(s, s) for s in node.src))


def _name(loop: UOp, names: set[str]) -> str:
    name = f"{loop.arg[0]}.p"
    while name in names:
        name += "p"
    names.add(name)
    return name

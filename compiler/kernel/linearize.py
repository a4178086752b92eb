"""From a graph to a list: every node is in the block of the innermost loop that it depends on, blocks nested as loops.

When: last. Why there: a node of the graph is computed once, outside every loop that it is invariant in; the list makes
this explicit. Assumes: output loops are nested in the order of the SINK, reduce loops are where their result is used.
Guarantees: each source precedes its uses, RANGE and END nest. Tests: tests/compiler/kernel/test_linearize.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import pairwise

from kernmill.ir import AxisKind, CompileError, InternalError, Ops, UOp, closed_ranges, dtypes, is_in_order, linear

from .facts import output_loops

__all__ = ["linearize", "loop_depths", "loop_paths", "walked"]

Path = tuple[UOp, ...]
_LONG_CHAIN = 8  # vector steps, one after the other


def linearize(ast: UOp, side_by_side: int = 0) -> list[UOp]:
    """Return the kernel as an ordered list, without the SINK.

    Instances of a long chain of vector operations are interleaved, up to `side_by_side` vectors.
    """
    order = [node for node in ast.toposort() if node.op is not Ops.SINK]
    paths = loop_paths(ast)
    path_of = {ranges: _path_of(ranges, paths) for ranges in {node.ranges for node in order}}
    blocks: dict[Path, list[UOp]] = {}
    for node in order:
        if node.op is not Ops.RANGE:
            blocks.setdefault(path_of[node.ranges], []).append(node)
    children: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(p[:n] for p in blocks for n in range(1, len(p) + 1)):
        children.setdefault(path[:-1], []).append(path)
    out: list[UOp] = []
    _emit((), blocks, children, out, side_by_side)
    return out


def loop_depths(ast: UOp) -> dict[UOp, int]:
    """Return the number of loops around the body of each loop."""
    return {loop: len(path) for loop, path in loop_paths(ast).items()}


def loop_paths(ast: UOp) -> dict[UOp, Path]:
    """For each loop the loops around its body, itself included, outermost first."""
    closers = [node for node in ast.toposort() if closed_ranges(node)]
    closed_somewhere = {r for node in closers for r in closed_ranges(node)}
    paths: dict[UOp, Path] = {}
    outputs = output_loops(ast)
    for position, loop in enumerate(outputs):  # inside those before it that also contain some store
        sharing = {r for store in ast.src if loop in store.ranges for r in store.ranges}
        paths[loop] = (*(r for r in outputs[:position] if r in sharing), loop)
    waiting = closers
    while waiting:  # a closer may be inside the loops of a later closer
        later: list[UOp] = []
        for node in waiting:
            if any(r in closed_somewhere and r not in paths for r in walked(node.ranges)):
                later.append(node)
                continue
            around = _path_of(node.ranges, paths)
            for loop in walked(closed_ranges(node)):
                around = (*around, loop)
                if paths.setdefault(loop, around) != around:
                    raise CompileError(
                        f"schedule of {ast.arg.name}: two reductions share {loop.arg[0]} but end up in different "
                        "loops. Split the loops around them in fewer ways in a given schedule."
                    )
        if len(later) == len(waiting):
            raise InternalError(f"linearize: loops of {ast.arg.name} are not properly nested")
        waiting = later
    return paths


def walked(loops: Iterable[UOp]) -> list[UOp]:
    """Return the loops that remain loops: not those that become unrolled instances or lanes."""
    return [r for r in loops if r.arg[1] not in (AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.RFACTOR)]


def _path_of(ranges: frozenset[UOp], paths: dict[UOp, Path]) -> Path:
    around = walked(ranges)
    for loop in around:
        if loop not in paths:
            raise InternalError(f"linearize: a value is in the loop {loop.arg}, which is never opened")
    deepest: Path = max((paths[loop] for loop in around), key=len, default=())
    for loop in around:
        if paths[loop] != deepest[: len(paths[loop])]:
            names = " ".join(sorted(str(r.arg[0]) for r in ranges))
            raise CompileError(f"a value needs loops that do not nest: {names}. Change the order in a given schedule.")
    return deepest


def _emit(
    path: Path, blocks: dict[Path, list[UOp]], children: dict[Path, list[Path]], out: list[UOp], side_by_side: int
) -> None:
    """Emit one basic block: its nodes and inner loops, each after its dependencies; nodes before loops if either is
    possible."""
    members: list[UOp | Path] = [*blocks.get(path, []), *children.get(path, [])]
    owner: dict[UOp, int] = {}
    for number, member in enumerate(members):
        for node in (member,) if isinstance(member, UOp) else _inside(member, blocks, children):
            owner[node] = number
    needs: list[set[int]] = [set() for _ in members]
    for node, number in owner.items():
        needs[number].update([n for s in node.src if (n := owner.get(s, number)) != number])
    level = _levels(members, needs, side_by_side)
    for first, second in _neighbours(blocks.get(path, [])):
        needs[owner[second]].add(owner[first])
    users: list[list[int]] = [[] for _ in members]
    for number, needed in enumerate(needs):
        for n in needed:
            users[n].append(number)
    missing = [len(needed) for needed in needs]
    ready = sorted((_rank(members[n]), level[n], n) for n in range(len(members)) if not missing[n])
    while ready:
        _, _, number = heappop(ready)
        member = members[number]
        if isinstance(member, UOp):
            out.append(member)
        else:
            loop = member[-1]
            out.append(loop)
            _emit(member, blocks, children, out, side_by_side)
            out.append(UOp(Ops.END, dtypes.void, (loop,)))
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, (_rank(members[user]), level[user], user))
    if any(missing):
        raise InternalError(f"linearize: a basic block in {[r.arg[0] for r in path]} depends on itself")


def _neighbours(block: list[UOp]) -> Iterator[tuple[UOp, UOp]]:
    """Return each load that must run in address order with the next one."""
    rows: dict[object, list[tuple[int, UOp]]] = {}
    for node in block:
        if node.op is Ops.LOAD and is_in_order(node):
            memory, *where = node.src[0].src  # index and gate
            terms, offset = linear(where[0])
            # a loaded value may be the index of another load
            if not any(n.op is Ops.LOAD for s in where for n in s.toposort()):
                rows.setdefault((memory, *terms.items()), []).append((offset, node))
    for row in rows.values():
        row.sort(key=lambda one: one[0])
        yield from pairwise(node for _, node in row)


def _levels(members: list[UOp | Path], needs: list[set[int]], side_by_side: int) -> list[int]:
    """Return how many steps precede each member in interleaved chains of vector operations, and its other dependencies;
    zeros if there is no long chain.

    A CPU looks some hundred instructions ahead. Of consecutive instances it sees one or two, and waits for their
    chains; interleaved they fill its units. Short chains overlap anyway, and too many instances would not fit the
    registers. Why: docs/topics/vector-code.md.
    """
    depth = [0] * len(members)
    chain = [0] * len(members)  # vector steps that wait for no accumulator
    for number, member in enumerate(members):
        needed = needs[number]
        if not isinstance(member, UOp) or (needed and max(needed) >= number):
            return [0] * len(members)
        depth[number] = 1 + max([depth[n] for n in needed], default=0)
        before = [chain[n] for n in needed]
        if _is_accumulator(member) or min(before, default=0) < 0:
            chain[number] = -1
        elif _is_step(member):
            chain[number] = max(before, default=0) + (2 if member.op is Ops.DOT else 1)  # which takes longer
    if max(chain, default=0) < _LONG_CHAIN:
        return [0] * len(members)
    level, first_use, width = list(depth), [len(members)] * len(members), dict[int, int]()
    for number in reversed(range(len(members))):
        if depth[number] + 1 < first_use[number] < len(members) and not _is_accumulator(members[number]):
            level[number] = first_use[number]
        elif _is_step(members[number]):
            width[depth[number]] = width.get(depth[number], 0) + 1
        for n in needs[number]:
            first_use[n] = min(first_use[n], level[number])
    return level if max(width.values(), default=0) <= side_by_side else [0] * len(members)


def _is_accumulator(member: UOp | Path) -> bool:
    return isinstance(member, UOp) and member.op in (Ops.CARRY, Ops.REG, Ops.AFTER)


def _is_step(member: UOp | Path) -> bool:
    return isinstance(member, UOp) and member.dtype.lanes > 1 and member.op not in (Ops.CONST, Ops.LOAD, Ops.BITCAST)


def _rank(member: UOp | Path) -> int:
    """Rank stores last and loops before them, so that loads are together at the start of a block."""
    if not isinstance(member, UOp):
        return 1
    return 2 if member.op in (Ops.STORE, Ops.SET) else 0


def _inside(path: Path, blocks: dict[Path, list[UOp]], children: dict[Path, list[Path]]) -> Iterable[UOp]:
    yield path[-1]
    yield from blocks.get(path, ())
    for child in children.get(path, ()):
        yield from _inside(child, blocks, children)

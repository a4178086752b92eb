"""What a kernel will do, read off its loops: for a schedule that is applied and not lowered yet.

`work.py` reads a lowered kernel, which takes ten times as long. Here a value counts once for each register of the loops
that it depends on, and an access by its strides along these loops. What later passes make is not seen: addresses,
products of bytes in one instruction, tables in registers. So this ranks the many neighbours of a schedule, and the
lowered kernel is asked about the few that are left. Tests: tests/compiler/kernel/test_planned_work.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log2, prod

from kernmill.ir import AxisKind, Ops, Target, UOp, closed_ranges, linear, memory_of

from .cost import work_cost
from .facts import iterations, mean_iterations, output_loops
from .work import Body, Coverage, Loops, Work, add_instructions, strides_of

__all__ = ["planned_ns", "planned_work"]

_INSIDE = {AxisKind.UNROLL: 1, AxisKind.RFACTOR: 1, AxisKind.VECTOR: 2}  # of a body, lanes innermost
_WORD = 4  # bytes that one product of bytes takes
_FEW = 4  # elements of a stride whose vectors are loaded whole


def planned_ns(ast: UOp, target: Target) -> float:
    """Estimate the time of a kernel whose schedule is applied."""
    return work_cost(planned_work(ast, target), target).total_ns


def planned_work(ast: UOp, target: Target) -> Work:
    """Read the work off the loops of a kernel; symbolic sizes count at their greatest."""
    reader = _LoopReader(ast, target)
    for node in reader.order:
        reader.read(node)
    for coverage in reader.coverages.values():
        coverage.finish()
    return Work(list(reader.bodies.values()), list(reader.coverages.values()))


class _LoopReader:
    """One pass over the nodes of a kernel."""

    def __init__(self, ast: UOp, target: Target) -> None:
        self.order, self.target = ast.toposort(), target
        self.wide = target.vector_bytes or 8
        self.bodies: dict[Loops, Body] = {(): Body((), 1.0)}
        self.coverages: dict[object, Coverage] = {}
        loops = [loop for loop in output_loops(ast) if loop.arg[1] not in _INSIDE]
        self.around: dict[UOp, Loops] = {loop: tuple(loops[: place + 1]) for place, loop in enumerate(loops)}
        for node in reversed(self.order):
            if node.op in (Ops.REDUCE, Ops.AFTER):
                nest = self.nest(node.ranges)
                for loop in closed_ranges(node):
                    if loop.arg[1] not in _INSIDE:
                        nest = self.around[loop] = (*nest, loop)
        self.fused = set(self.in_dots() if target.dots else ())
        for node in self.order:
            if node.op is Ops.REDUCE and node.arg[0] is Ops.ADD and node.src[0].op is Ops.MUL and node.dtype.is_float:
                self.fused.add(node.src[0])

    def in_dots(self) -> Iterable[UOp]:
        """Products of bytes, with their conversions: four of them are one instruction."""
        for node in self.order:
            product = node.src[0] if node.op is Ops.REDUCE and not node.dtype.is_float else node
            are_bytes = all(s.op is Ops.CAST and s.src[0].dtype.size_bytes == 1 for s in product.src)
            if product is not node and product.op is Ops.MUL and are_bytes:
                yield from (product, *product.src)

    def nest(self, loops: Iterable[UOp]) -> Loops:
        """All loops around the innermost of these."""
        return max((self.around.get(loop, ()) for loop in loops), key=len, default=())

    def body(self, loops: Iterable[UOp]) -> tuple[Body, list[UOp]]:
        """The body in which something that depends on these loops is computed; those of them that are unrolled or
        lanes, lanes last."""
        key = self.nest(loops)
        body = self.bodies.get(key)
        if body is None:
            body = self.bodies[key] = Body(key, prod(map(mean_iterations, key)), scalar=2.0)
        inside = [loop for loop in loops if loop.arg[1] in _INSIDE]
        return body, sorted(inside, key=lambda loop: _INSIDE[loop.arg[1]])

    def read(self, node: UOp) -> None:
        """Add one node."""
        if node.op in (Ops.LOAD, Ops.STORE):
            self.access(node)
        elif node.op is Ops.REDUCE:
            self.reduction(node)
        elif node.op.is_elementwise and not node.dtype.is_index and node not in self.fused and node.ranges:
            body, inside = self.body(node.ranges)
            self.add(body, node, inside)

    def add(self, body: Body, node: UOp, inside: list[UOp]) -> None:
        """Add an operation, once for each copy of its body."""
        copies, lanes = _copies_and_lanes(inside)
        if node.dtype.size_bytes == 1 and lanes > 1:  # adjacent bytes fill a register
            together = min(copies, max(1, self.wide // lanes))
            copies, lanes = -(-copies // together), lanes * together
        kinds = [one.dtype.vec(lanes) if lanes > 1 else one.dtype for one in (node, *node.src)]
        add_instructions(body, node.op, kinds, self.wide, copies)

    def reduction(self, node: UOp) -> None:
        """Add the combining operation; a fold of lanes; the chain of sums and their registers."""
        closed = closed_ranges(node)
        body, inside = self.body(dict.fromkeys((*node.ranges, *closed, *node.src[0].ranges)))
        copies, lanes = _copies_and_lanes(inside)
        registers = max(1, -(-lanes * node.dtype.size_bytes // self.wide))
        body.fma += copies * registers / (_WORD if node.src[0] in self.fused and not node.dtype.is_float else 1)
        dependent = prod(iterations(loop) for loop in closed if loop.arg[1] is AxisKind.UNROLL)
        body.chain = max(body.chain, float(dependent))
        body.sums += copies * registers / dependent
        if any(loop.arg[1] is AxisKind.VECTOR for loop in closed):
            after, left = self.body(node.ranges)
            after.shuffle += _copies_and_lanes(left)[0] * log2(lanes)
            after.fma += _copies_and_lanes(left)[0] * log2(lanes)

    def access(self, node: UOp) -> None:
        """Add a load or store, and what it covers."""
        address, is_store = node.src[0], node.op is Ops.STORE
        memory = memory_of(address)
        body, inside = self.body(node.ranges)
        copies, lanes = _copies_and_lanes(inside)
        size = memory.dtype.scalar.size_bytes
        count = copies * max(1, -(-lanes * size // self.wide))
        terms, offset = linear(address.src[1])
        self.instructions(body, terms, inside, (copies, count, size), is_store=is_store)
        gate = address.gate
        if lanes > 1 and gate is not None and any(loop.arg[1] is AxisKind.VECTOR for loop in gate.ranges):
            body.masked += count
        loops = (*body.loops, *inside)
        key = (memory, is_store, loops, frozenset(terms.items()), offset)
        if key not in self.coverages:
            steps, scattered = strides_of(terms, size)
            one = Coverage(memory, loops, steps, scattered, is_store, node.arg == "nt", is_single=False)
            one.accesses.append((0, size))
            self.coverages[key] = one

    def instructions(
        self, body: Body, terms: dict[UOp, int], inside: list[UOp], counts: tuple[int, int, int], *, is_store: bool
    ) -> None:
        """Add the instructions of an access: whole vectors, vectors that are transposed, or lane by lane."""
        copies, count, size = counts
        lanes = [loop for loop in inside if loop.arg[1] is AxisKind.VECTOR]
        width, step = prod(map(iterations, lanes)), max((abs(terms.get(loop, 0)) for loop in lanes), default=0)
        atoms = [a for a in terms if a.op is not Ops.RANGE and not set(lanes).isdisjoint(a.ranges)]
        is_indexed = any(node.op is Ops.LOAD for atom in atoms for node in atom.toposort())
        run = _adjacent(terms, inside)
        name, moved = "store" if is_store else "load", 0.0
        if run >= width * copies > 1 and not atoms:
            count = max(1, -(-run * size // self.wide))
        elif is_indexed or (step > _FEW and run < _FEW):
            body.lanes += copies * width
            return
        elif step > _FEW:
            moved = count * log2(width)
        elif step > 1 or atoms:
            count *= max(2, step)
            moved = count
        setattr(body, name, getattr(body, name) + count)
        body.shuffle += moved


def _adjacent(terms: dict[UOp, int], inside: Iterable[UOp]) -> int:
    """Elements that one iteration accesses next to each other."""
    run = 1
    for step, loop in sorted((abs(terms.get(loop, 0)), iterations(loop)) for loop in inside):
        run = max(run, step * (loop - 1) + run) if 0 < step <= run else run
    return run


def _copies_and_lanes(inside: Iterable[UOp]) -> tuple[int, int]:
    """Copies of a body's value, and its lanes."""
    copies = lanes = 1
    for loop in inside:
        if loop.arg[1] is AxisKind.VECTOR:
            lanes *= iterations(loop)
        else:
            copies *= iterations(loop)
    return copies, lanes

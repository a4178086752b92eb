"""What the heuristic knows of a kernel: its loops, and how far each load and store steps with each of them.

Tests: tests/compiler/optimize/test_analysis.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from kernmill.ir import Ops, Target, UOp, closed_ranges, linear, memory_of

from ..kernel import iterations, loops_of, order_of

__all__ = [
    "Access",
    "Facts",
    "Group",
    "analyze",
    "divisors",
    "even_part",
    "is_gated",
    "is_streamed",
    "main_group",
    "nest_iterations",
    "outgrows_caches",
]


_STREAMED = 2  # times L2
_DEAR = 8  # what is made of more instructions than that counts as so many


@dataclass(slots=True)
class Access:
    """A load or store: how far it steps with each loop; None where the place is not a plain multiple of the loop."""

    node: UOp
    steps: dict[str, int | None]
    size_bytes: int
    memory_bytes: int  # of what all loops touch of the buffer
    is_plain: bool  # the place is a sum of multiples of loops, and touched in every iteration

    def step(self, loop: str) -> int | None:
        """Elements from one iteration to the next; 0 where the place does not change with the loop."""
        return self.steps.get(loop, 0)

    def moves(self, loop: str) -> bool:
        """Whether the place changes with the loop; a gate that does is another matter."""
        return self.step(loop) != 0

    @property
    def memory(self) -> UOp:
        """The buffer, or memory of the kernel's own."""
        return memory_of(self.node.src[0])

    @property
    def slot(self) -> str:
        """The number of the buffer, as `stage` takes it."""
        return str(self.memory.arg[0])


@dataclass(slots=True)
class Group:
    """Reductions over the same loops: loops innermost last, the loads below them, the output loops they change with."""

    loops: list[str]
    loads: list[Access]
    around: set[str]

    def operand(self, loop: str, without: str) -> list[Access]:
        """The loads that change with one loop and not with another."""
        return [a for a in self.loads if loop in a.steps and without not in a.steps]


@dataclass(slots=True)
class Facts:
    """What the heuristic knows of a kernel."""

    ast: UOp
    sizes: dict[str, int]
    outputs: list[str]
    stores: list[Access]
    loads: list[Access]
    groups: list[Group] = field(default_factory=list[Group])
    work: int = 0  # elementwise ops per element; a dear one counts as several
    lanes: int = 1
    kept: list[str] = field(default_factory=list[str])  # loops for each iteration of which all rows are kept
    keeping: set[str] = field(default_factory=set[str])  # ... or some
    filling: list[str] = field(default_factory=list[str])  # loops that fill kept rows, the innermost of each
    symbolic: set[str] = field(default_factory=set[str])  # loops whose sizes, here the greatest, are known at launch


def analyze(ast: UOp, target: Target) -> Facts:
    """Read it all off a kernel."""
    order = ast.toposort()
    loops = loops_of(ast)
    sizes = {name: iterations(loop) for name, loop in loops.items()}
    loads = {node: _access(node.src[0], node, sizes) for node in order if node.op is Ops.LOAD}
    stores = [_access(store.src[0], store, sizes) for store in ast.src]
    facts = Facts(ast, sizes, [name for name in order_of(ast) if name in sizes], stores, list(loads.values()))
    memories = [{str(r.arg[0]) for r in node.src} for node in order if node.op is Ops.LOCAL]
    facts.kept = [name for name in facts.outputs if memories and all(name in loops for loops in memories)]
    facts.keeping = set[str]().union(*memories)
    facts.symbolic = {name for name, loop in loops.items() if not loop.src[0].is_const}
    filling = {r for node in order if node.op is Ops.AFTER for r in closed_ranges(node)}
    for node in order:
        if node.op is Ops.AFTER:
            facts.filling.append(str(closed_ranges(node)[-1].arg[0]))
        if node.op is Ops.REDUCE and filling.isdisjoint(closed_ranges(node)):
            _add_group(facts, node, loads)
        elif node.op.is_elementwise and node.dtype.kind.value != "index":
            facts.work += _DEAR if node.op.cost > _DEAR else 1
    widths = [a.node.dtype if a.node.op is Ops.LOAD else a.node.src[1].dtype for a in (*facts.loads, *facts.stores)]
    widest = max((max(4, d.size_bytes) for d in widths if d.bits < 64 or d.is_float), default=8)
    facts.lanes = target.vector_bytes // widest if target.vector_bytes else 1
    return facts


def _access(place: UOp, node: UOp, sizes: dict[str, int]) -> Access:
    terms, _ = linear(place.src[1])
    steps: dict[str, int | None] = {}
    for atom, factor in terms.items():
        if atom.op is Ops.RANGE:
            steps.setdefault(str(atom.arg[0]), factor)
        else:
            steps.update({str(r.arg[0]): None for r in atom.ranges})
    if len(place.src) > 2:
        for r in place.src[2].ranges:  # read where the gate holds: changes with the loop, at no step of its own
            steps.setdefault(str(r.arg[0]), 0)
    is_plain = len(place.src) == 2 and all(atom.op is Ops.RANGE for atom in terms)
    size_bytes, count = place.dtype.scalar.size_bytes, int(memory_of(place).arg[1])
    if None not in steps.values():
        walked = {name: abs(step) for name, step in steps.items() if step}
        count = min(count, min(walked.values(), default=1) * prod(sizes[name] for name in walked))
    return Access(node, steps, size_bytes, count * size_bytes, is_plain)


def _add_group(facts: Facts, node: UOp, loads: dict[UOp, Access]) -> None:
    names = [str(r.arg[0]) for r in closed_ranges(node)]
    mine = [loads[n] for n in node.toposort() if n.op is Ops.LOAD and any(str(r.arg[0]) in names for r in n.ranges)]
    around = {str(r.arg[0]) for r in node.ranges}
    for group in facts.groups:
        if group.loops == names:
            group.loads += [load for load in mine if load not in group.loads]
            group.around |= around
            return
    facts.groups.append(Group(names, mine, around))


def main_group(facts: Facts) -> Group | None:
    """The reductions that take the most time."""
    return max(facts.groups, key=lambda g: nest_iterations(facts, g.loops) * len(g.loads), default=None)


def nest_iterations(facts: Facts, loops: list[str]) -> int:
    """Of loops inside each other; a size that is known only at launch counts as the greatest."""
    return prod(max(1, facts.sizes[name]) for name in loops)


def even_part(count: int, most: int) -> int:
    """Rows or vectors of a tile, at most so many, that leave little of the last tile empty."""
    return min(range(1, most + 1), key=lambda n: (-(-count // n) * (n + 1), -n))


def divisors(size: int, most: int) -> list[int]:
    """Tiles of at most so many that leave nothing over."""
    return [n for n in range(1, min(size, most) + 1) if size % n == 0]


def is_streamed(size_bytes: int, target: Target) -> bool:
    """Whether no cache holds an operand, so that few rows read it once, in the order in which it lies."""
    return size_bytes > _STREAMED * target.l2_bytes


def outgrows_caches(size_bytes: int, target: Target) -> bool:
    """Whether a result is so large that whoever reads it next finds little of it in the caches."""
    return size_bytes > 8 * target.l2_bytes


def is_gated(a: Access) -> bool:
    """Whether it is read only where a condition holds."""
    return a.node.op is Ops.LOAD and len(a.node.src[0].src) > 2

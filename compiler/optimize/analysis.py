"""Facts about a kernel for the heuristic: its loops, the stride of each load and store along each loop, and the product
that it may be. `analyze` computes them once; every strategy reads the same Facts.

Nothing here depends on the meaning of a kernel beyond one reduction. Tests: tests/compiler/optimize/test_analysis.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from kernmill.ir import DType, Ops, Target, UOp, cached_property, closed_ranges, dtypes, linear, memory_of

from ..kernel.facts import iterations, loops_of, names_of, order_of

__all__ = [
    "EXPENSIVE", "Access", "Facts", "Product", "ReductionGroup", "analyze", "divisors", "even_part", "exceeds_caches",
]  # fmt: skip

EXPENSIVE = 8  # additions that an expensive op counts as


@dataclass(slots=True)
class Access:
    """A load or store: its stride along each loop; None if the index is not affine in the loop."""

    node: UOp
    steps: dict[str, int | None]
    size_bytes: int
    memory_bytes: int  # of all elements that the loops access
    is_affine: bool  # the index is affine in the loops, and accessed in every iteration
    # the index is affine in quotients and remainders of loops (i // 16, i % 16): affine after a split
    is_blockwise_affine: bool
    dtype: DType  # of its values; of an operand: the dtype that they are widened to

    def step(self, loop: str) -> int | None:
        """Return the distance in elements of consecutive iterations; 0 if the index is invariant in the loop."""
        return self.steps.get(loop, 0)

    def depends_on(self, loop: str) -> bool:
        """True if the index depends on the loop; a gate that depends on it does not count."""
        return self.step(loop) != 0

    @property
    def is_gated(self) -> bool:
        """True if the access has a predicate."""
        return self.node.op is Ops.LOAD and self.node.src[0].gate is not None

    @property
    def memory(self) -> UOp:
        """The buffer, which may be kernel-local."""
        return memory_of(self.node.src[0])

    @property
    def slot(self) -> str:
        """The number of the buffer, as `stage` takes it."""
        return str(self.memory.arg[0])


@dataclass(slots=True)
class ReductionGroup:
    """Reductions over the same loops: loops innermost last, the loads below them, the output loops they change with."""

    loops: list[str]
    loads: list[Access]
    around: set[str]

    @property
    def terms(self) -> str:
        """The loop of a reduction over one loop; empty if there are several."""
        return self.loops[0] if len(self.loops) == 1 else ""

    def operand(self, loop: str, without: str) -> list[Access]:
        """The loads that change with one loop and not with another."""
        return [a for a in self.loads if loop in a.steps and without not in a.steps]


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products of two operands, each converted from a buffer. Rows and columns are loops of only `left` and
    only `right`, and the output has unit stride along the columns."""

    dtype: DType  # of the accumulator
    left: Access
    right: Access
    inner: str
    rows: str = ""
    columns: str = ""


@dataclass
class Facts:
    """Facts about a kernel and its target."""

    ast: UOp
    target: Target
    sizes: dict[str, int]
    outputs: list[str]
    stores: list[Access]
    loads: list[Access]
    groups: list[ReductionGroup] = field(default_factory=list[ReductionGroup])
    work: int = 0  # elementwise ops per element; an expensive one counts as several
    lanes: int = 1
    row_loops: list[str] = field(default_factory=list[str])  # loops whose iterations each have their own row buffers
    loops_with_row_buffers: set[str] = field(default_factory=set[str])  # ... or some
    row_writers: list[str] = field(default_factory=list[str])  # loops that write row buffers, the innermost of each
    symbolic: set[str] = field(default_factory=set[str])  # loops whose sizes, here the greatest, are known at launch

    def iterations(self, loops: Iterable[str]) -> int:
        """Of loops inside each other; a size that is known only at launch counts as the greatest."""
        return prod(max(1, self.sizes[name]) for name in loops)

    def has_slow_masks(self, loop: str) -> bool:
        """True if some lanes of a loop are narrower than the target's masks support fast."""
        return any(
            a.depends_on(loop) and a.size_bytes < self.target.min_mask_lane_bytes for a in (*self.loads, *self.stores)
        )

    @cached_property
    def main(self) -> ReductionGroup | None:
        """The reductions that take the most time."""
        return max(self.groups, key=lambda g: self.iterations(g.loops) * len(g.loads), default=None)

    @cached_property
    def sum(self) -> UOp | None:
        """The reduction of a kernel with one result and fixed sizes; None if it has several reductions or none."""
        found = [node for node in self.ast.toposort() if node.op is Ops.REDUCE]
        is_one = len(found) == len(self.stores) == 1 and not self.symbolic
        return found[0] if is_one and found[0].arg == (Ops.ADD, 1) else None

    def operands(self, total: UOp) -> tuple[Access, ...]:
        """Return the factors of a reduction over one loop, if both are converted from loads that depend on the loop,
        with affine or blockwise affine indices."""
        loops, loads = names_of(closed_ranges(total)), {a.node: a for a in self.loads if a.is_blockwise_affine}
        if total.arg != (Ops.ADD, 1) or total.src[0].op is not Ops.MUL or len(loops) != 1:
            return ()
        values = [s.src[0] for s in total.src[0].src if s.op is Ops.CAST]
        found = [(loads.get(v.src[0] if v.op is Ops.CAST else v), v.dtype) for v in values]
        both = tuple(replace(a, dtype=dtype) for a, dtype in found if a is not None and loops[0] in a.steps)
        return both if len(both) == 2 else ()

    @cached_property
    def product(self) -> Product | None:
        """The product of two buffers that a kernel is; None where it is something else."""
        total, store = self.sum, self.stores[0]
        found = self.operands(total) if total is not None and store.is_affine else ()
        if total is None or not found or any(a.memory.op is not Ops.PARAM for a in found):
            return None
        (inner,), (first, second) = names_of(closed_ranges(total)), found
        for left, right in ((first, second), (second, first)):
            columns = [n for n in self.outputs if store.step(n) == 1 and n in right.steps and n not in left.steps]
            rows = [n for n in self.outputs if n in left.steps and n not in right.steps]
            if columns and rows:
                return Product(total.dtype, left, right, inner, rows[-1], columns[0])
        return Product(total.dtype, first, second, inner)


def analyze(ast: UOp, target: Target) -> Facts:
    """Read it all off a kernel."""
    order = ast.toposort()
    loops = loops_of(ast)
    sizes = {name: iterations(loop) for name, loop in loops.items()}
    loads = {node: _access(node.src[0], node, sizes) for node in order if node.op is Ops.LOAD}
    stores = [_access(store.src[0], store, sizes) for store in ast.src]
    facts = Facts(ast, target, sizes, [name for name in order_of(ast) if name in sizes], stores, list(loads.values()))
    memories = [set(names_of(node.src)) for node in order if node.op is Ops.LOCAL]
    facts.row_loops = [name for name in facts.outputs if memories and all(name in loops for loops in memories)]
    facts.loops_with_row_buffers = set[str]().union(*memories)
    facts.symbolic = {name for name, loop in loops.items() if not loop.src[0].is_const}
    filling = {r for node in order if node.op is Ops.AFTER for r in closed_ranges(node)}
    for node in order:
        if node.op is Ops.AFTER:
            facts.row_writers += names_of(closed_ranges(node)[-1:])
        if node.op is Ops.REDUCE and filling.isdisjoint(closed_ranges(node)):
            _add_group(facts, node, loads)
        elif node.op.is_elementwise and not node.dtype.is_index:
            facts.work += EXPENSIVE if node.op.cost > EXPENSIVE else 1
    kinds = {a.dtype for a in (*facts.loads, *facts.stores) if a.steps} or {facts.stores[0].dtype}
    widest = max((max(4, d.size_bytes) for d in kinds if d.bits < 64 or d.is_float), default=8)
    is_gathered = target.lanes(dtypes.int64) == 1 and _has_gathers([*facts.loads, *stores], target.vector_bytes)
    is_scalar = not target.vector_bytes or not target.scalar_dtypes.isdisjoint(kinds) or is_gathered
    facts.lanes = 1 if is_scalar else target.vector_bytes // widest
    return facts


def _has_gathers(accesses: Sequence[Access], vector_bytes: int) -> bool:
    """True if lanes of a vector would have addresses of their own, which are ints of 64 bits."""
    steps = [(name, step, a.dtype.size_bytes) for a in accesses for name, step in a.steps.items()]
    near = {name for name, step, size in steps if step and abs(step) * size <= vector_bytes}
    return any(step is None and name in near for name, step, _ in steps)


def _access(index: UOp, node: UOp, sizes: dict[str, int]) -> Access:
    terms, _ = linear(index.src[1])
    steps: dict[str, int | None] = {}
    for atom, factor in terms.items():
        if atom.op is Ops.RANGE:
            steps.setdefault(str(atom.arg[0]), factor)
        else:
            steps.update(dict.fromkeys(names_of(atom.ranges)))
    for name in names_of(index.gate.ranges if index.gate is not None else ()):
        steps.setdefault(name, 0)  # depends on the loop through its gate only, with no stride
    is_affine = index.gate is None and all(atom.op is Ops.RANGE for atom in terms)
    dtype, count = index.dtype.scalar, int(memory_of(index).arg[1])
    if None not in steps.values():
        moving = {name: abs(step) for name, step in steps.items() if step}
        count = min(count, min(moving.values(), default=1) * prod(sizes[name] for name in moving))
    is_blockwise_affine = index.gate is None and all(map(_is_digit, terms))
    return Access(node, steps, dtype.size_bytes, count * dtype.size_bytes, is_affine, is_blockwise_affine, dtype)


def _is_digit(atom: UOp) -> bool:
    """True if it is a loop, or a quotient or remainder of one by a constant."""
    while atom.op in (Ops.FLOORDIV, Ops.MOD) and atom.src[1].is_const:
        atom = atom.src[0]
    return atom.op is Ops.RANGE


def _add_group(facts: Facts, node: UOp, loads: dict[UOp, Access]) -> None:
    names, around = names_of(closed_ranges(node)), set(names_of(node.ranges))
    mine = [loads[n] for n in node.toposort() if n.op is Ops.LOAD and any(name in names for name in names_of(n.ranges))]
    group = next((g for g in facts.groups if g.loops == names), None) or ReductionGroup(names, [], set())
    group.loads += [load for load in mine if load not in group.loads]
    group.around |= around
    if group not in facts.groups:
        facts.groups.append(group)


def even_part(count: int, most: int) -> int:
    """Return the tile size up to `most` that minimizes padding plus one row of overhead per tile. Ties: the larger."""
    return min(range(1, most + 1), key=lambda n: (-(-count // n) * (n + 1), -n))


def divisors(size: int, most: int) -> list[int]:
    """Return the tile sizes up to `most` that divide `size`."""
    return [n for n in range(1, min(size, most) + 1) if size % n == 0]


def exceeds_caches(size_bytes: int, target: Target) -> bool:
    """True if a result is so large that its next reader finds little of it in the caches."""
    return size_bytes > 8 * target.l2_bytes

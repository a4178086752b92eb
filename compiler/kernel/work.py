"""What a lowered kernel does: the instructions of each loop body, and the memory that its accesses cover.

It is read off the linear list, where gathers, masks, conversions and functions are already what a machine will run.
`compiler/kernel/cost.py` turns it into cycles. Tests: tests/compiler/kernel/test_work.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import log2, prod
from typing import Any, TypeAlias

from kernmill.ir import LINE_BYTES, DType, Op, Ops, Target, UOp, linear, memory_of

from .facts import iterations, mean_iterations

__all__ = ["Body", "Coverage", "Loops", "Work", "add_instructions", "read_work", "strides_of"]

_DIVIDES = frozenset((Ops.DIV, Ops.SQRT, Ops.FLOORDIV, Ops.MOD, Ops.CDIV, Ops.CMOD))
_MOVES = frozenset((Ops.SHUFFLE, Ops.LANE, Ops.TABLE, Ops.CAST))
_TESTS = frozenset((Ops.WHERE, Ops.LT, Ops.LE, Ops.EQ, Ops.NE))
_FREE = frozenset((Ops.CONST, Ops.PARAM, Ops.VARIABLE, Ops.LOCAL, Ops.REG, Ops.AFTER, Ops.INDEX, Ops.BITCAST,
                   Ops.BARRIER))  # fmt: skip
_GATHERED = frozenset((Ops.LOAD, Ops.TABLE))

Loops: TypeAlias = "tuple[UOp, ...]"
Terms: TypeAlias = "tuple[dict[UOp, int], tuple[int, ...]]"  # coefficients of atoms, offsets of lanes


@dataclass(slots=True)
class Body:
    """One iteration of a loop, without its inner loops. Units: instructions, of vectors one for each register."""

    loops: Loops  # around it, outermost first
    times: float
    fma: float = 0.0
    alu: float = 0.0
    scalar: float = 0.0
    shuffle: float = 0.0
    divide: float = 0.0
    load: float = 0.0
    store: float = 0.0
    lanes: float = 0.0  # of gathers and scatters
    masked: float = 0.0
    matrix: float = 0.0  # multiply-adds of a matrix unit
    chain: float = 0.0  # dependent steps from an accumulator to its next value
    sums: float = 0.0  # registers of accumulators

    @property
    def trips(self) -> float:
        """Iterations of its innermost loop."""
        return mean_iterations(self.loops[-1]) if self.loops else 1.0

    @property
    def vectors(self) -> float:
        """Instructions other than those of addresses and loops."""
        return self.fma + self.alu + self.shuffle + self.divide + self.load + self.store + self.masked


@dataclass(slots=True)
class Coverage:
    """Accesses of one body to one buffer that differ by constants. Units: bytes."""

    memory: UOp
    loops: Loops
    strides: dict[UOp, float]  # along each loop
    scattered: set[UOp]  # loops along which indices are loaded: anywhere in the buffer
    is_store: bool
    is_streamed: bool
    is_single: bool  # elements one by one
    accesses: list[tuple[int, int]] = field(default_factory=list["tuple[int, int]"])  # offset, size
    pieces: int = 0  # of one iteration, a line or more apart
    piece_bytes: float = 0.0
    span_bytes: float = 0.0
    inside: list[float] = field(default_factory=list[float])  # bytes of all loops, of all but the outermost, ..

    def finish(self) -> None:
        """Merge adjacent accesses into pieces."""
        self.accesses.sort()
        total, begin, end = 0, self.accesses[0][0], self.accesses[0][0] - LINE_BYTES
        for at, size in self.accesses:
            self.pieces += at >= end + LINE_BYTES
            total += max(0, at + size - max(at, end)) if at < end + LINE_BYTES else size
            end = max(end, at + size)
        self.piece_bytes, self.span_bytes = total / self.pieces, end - begin
        self.inside = [self.bytes_in(self.loops[depth:]) for depth in range(len(self.loops) + 1)]

    def bytes_in(self, loops: Iterable[UOp]) -> float:
        """Bytes of all lines that these loops touch, at most those of the buffer."""
        size, count, span, far = self.piece_bytes, self.pieces, self.span_bytes, 1
        loops = list(loops)
        for loop in loops:
            if loop in self.scattered and loop not in self.strides:
                far *= iterations(loop)
        for stride, trips in sorted((self.strides[loop], iterations(loop)) for loop in loops if loop in self.strides):
            span += stride * (trips - 1)
            if count == self.pieces and stride <= max(size, LINE_BYTES):
                size += stride * (trips - 1)
            elif stride:
                count *= trips
        lines = count * max(LINE_BYTES, -(-size // LINE_BYTES) * LINE_BYTES)
        whole = int(self.memory.arg[1]) * self.memory.dtype.scalar.size_bytes
        return min(far * min(lines, max(span, LINE_BYTES)), max(whole, LINE_BYTES))

    @property
    def run_bytes(self) -> float:
        """Adjacent bytes from the first one on, in the order of the loops."""
        size = self.piece_bytes
        for loop in reversed(self.loops):
            stride = self.strides.get(loop, 0)
            if loop in self.scattered or stride > max(size, LINE_BYTES):
                break
            size += stride * (iterations(loop) - 1)
        return max(LINE_BYTES, size)


@dataclass(slots=True)
class Work:
    """The bodies of a kernel, and what its accesses cover."""

    bodies: list[Body]
    coverages: list[Coverage]


def read_work(uops: Sequence[UOp], target: Target) -> Work:
    """Read the work off a linear list; symbolic sizes count at their greatest."""
    reader = _Reader(target)
    for u in uops:
        reader.read(u)
    for coverage in reader.coverages.values():
        coverage.finish()
    return Work(list(reader.bodies.values()), list(reader.coverages.values()))


class _Reader:
    """One pass over the list."""

    def __init__(self, target: Target) -> None:
        self.wide = target.vector_bytes or 8
        self.has_dots = target.dot_most == 255
        self.loops: Loops = ()
        self.body = Body((), 1.0)
        self.bodies: dict[Loops, Body] = {(): self.body}
        self.coverages: dict[object, Coverage] = {}
        self.steps: dict[UOp, float] = {}  # of a chain, from an accumulator

    def read(self, u: UOp) -> None:
        """Add one UOp."""
        op = u.op
        if op in _FREE:
            if op is Ops.BITCAST and u.src[0] in self.steps:
                self.steps[u] = self.steps[u.src[0]]
        elif op is Ops.RANGE or op is Ops.END:
            self.loops = (*self.loops, u) if op is Ops.RANGE else self.loops[:-1]
            self.body = self.bodies.get(self.loops) or Body(
                self.loops, prod(map(mean_iterations, self.loops)), scalar=2.0
            )
            self.bodies[self.loops] = self.body
        elif op is Ops.CARRY:
            self.steps[u] = 0.0
        elif op is Ops.SET:
            self.body.chain = max(self.body.chain, self.steps.get(u.src[1], 0.0))
            self.body.sums += _registers(u.src[1].dtype, self.wide)
        elif op is Ops.LOAD or op is Ops.STORE:
            self.access(u)
        elif op is Ops.PREFETCH:
            self.body.load += 1
        else:
            taken = self.operation(u)
            before = [self.steps[s] for s in u.src if s in self.steps]
            if before:
                self.steps[u] = taken + max(before)

    def operation(self, u: UOp) -> float:
        """Add an operation; return its steps in a chain."""
        about = u.arg if u.op is Ops.MMA else u.op is Ops.BROADCAST and u.src[0].op is Ops.LOAD
        added, steps = _instructions(u.op, u.dtype, tuple([s.dtype for s in u.src]), about, self.wide, self.has_dots)
        body = self.body
        for name, count in added:
            setattr(body, name, getattr(body, name) + count)
        return steps

    def access(self, u: UOp) -> None:
        """Add a load or store."""
        address, body = u.src[0], self.body
        value = u if u.op is Ops.LOAD else u.src[1]
        index, gate, lanes, size = address.src[1], address.gate, value.dtype.lanes, value.dtype.scalar.size_bytes
        count, is_store, is_single = _registers(value.dtype, self.wide), u.op is Ops.STORE, index.dtype.lanes > 1
        if is_single:
            body.lanes += lanes
        elif is_store:
            body.store += count
        else:
            body.load += count * (1.5 if isinstance(u.arg, tuple) else 1)  # with a prefetch
        if gate is not None and gate.dtype.lanes > 1 and gate.op is not Ops.BROADCAST:
            body.masked += count
        terms, offsets = _terms(index)
        memory = memory_of(address)
        key = (memory, is_store, is_single, self.loops, frozenset(terms.items()))
        coverage = self.coverages.get(key)
        if coverage is None:
            strides, scattered = strides_of(terms, size)
            coverage = Coverage(memory, self.loops, strides, scattered, is_store, u.arg == "nt", is_single)
            self.coverages[key] = coverage
        each = size if is_single else lanes * size
        coverage.accesses += [(at * size, each) for at in offsets]


def _registers(dtype: DType, wide: int) -> int:
    """Full registers of a value, at least one."""
    return max(1, -(-dtype.lanes * dtype.scalar.size_bytes // wide))


def add_instructions(body: Body, op: Op, kinds: Sequence[DType], wide: int, copies: int) -> None:
    """Add an operation on values of these kinds, its result's first, `copies` times to a body."""
    added, _ = _instructions(op, kinds[0], tuple(kinds[1:]), None, wide, True)
    for name, count in added:
        setattr(body, name, getattr(body, name) + copies * count)


@lru_cache(maxsize=4096)  # an unrolled body has few kinds of operations
def _instructions(
    op: Op, dtype: DType, sources: tuple[DType, ...], about: Any, wide: int, has_dots: bool
) -> tuple[tuple[tuple[str, float], ...], float]:
    """Return what an operation adds to a body, by field, and its steps in a chain.

    `about` is the argument of an MMA; of a BROADCAST: True if a load does it.
    """
    lanes = max(dtype.lanes, *(s.lanes for s in sources)) if sources else dtype.lanes
    count = max(_registers(one, wide) for one in (dtype, *sources[:2])) if lanes > 1 else 1
    is_float = dtype.is_float or bool(sources and sources[0].is_float)
    if op in _MOVES or op in (Ops.BROADCAST, Ops.LANES, Ops.FOLD, Ops.DOT, Ops.MMA):
        return _lane_moves(op, dtype, sources, about, count, has_dots)
    if op in _DIVIDES:
        return (("divide", count if lanes > 1 else 0.5),), 4.0
    if dtype.lanes == 1 and not is_float:
        return (("scalar", 1),), 0.3
    if is_float and op not in _TESTS:
        return (("fma", count * max(1, op.cost)),), 1.0
    if op is Ops.MUL:
        return (("fma", count * (3 if dtype.scalar.size_bytes == 8 else 1)),), 1.0
    return (("alu", count * max(1, op.cost)),), 0.5


def _lane_moves(
    op: Op, dtype: DType, sources: tuple[DType, ...], about: Any, count: int, has_dots: bool
) -> tuple[tuple[tuple[str, float], ...], float]:
    """Return the same for an operation that moves lanes, combines them, or is of a special unit."""
    if op is Ops.FOLD:
        halves = log2(max(2, sources[0].lanes))
        return (("shuffle", halves), ("fma", halves)), 2 * halves
    if op is Ops.DOT:
        return (("fma", count * (1 if has_dots else 3)),), 1.5
    if op is Ops.MMA:
        return (("matrix", prod(about[:3])),), 4.0
    if op is Ops.BROADCAST:
        return (("shuffle", not about),), 0.5
    if op is Ops.LANES:
        return (("shuffle", len(sources)),), 1.0
    if op is Ops.CAST and dtype.lanes == 1:
        return (("alu", 1),), 1.0
    return (("shuffle", count),), 1.0


def _terms(index: UOp) -> Terms:
    """The coefficient of each atom of an index, and the offset of each lane."""
    if index.dtype.lanes == 1:
        terms, offset = linear(index)
        return terms, (offset,)
    terms, offsets, waiting = dict[UOp, int](), [0] * index.dtype.lanes, [(index, 1)]
    while waiting:
        node, factor = waiting.pop()
        parts: list[tuple[dict[UOp, int], int]] = []
        if node.op is Ops.ADD:
            waiting += [(s, factor) for s in node.src]
        elif node.op is Ops.MUL and node.src[1].is_const and type(node.src[1].arg) is int:
            waiting.append((node.src[0], factor * node.src[1].arg))
        elif node.op is Ops.CONST:
            values = node.arg if isinstance(node.arg, tuple) else (node.arg,) * len(offsets)
            offsets = [at + factor * value for at, value in zip(offsets, values, strict=True)]
        elif node.op in (Ops.BROADCAST, Ops.LANES):
            parts = [linear(s) for s in node.src] * (len(offsets) // len(node.src))
            offsets = [at + factor * part[1] for at, part in zip(offsets, parts, strict=True)]
        else:
            parts = [({node: 1}, 0)]
        for atom, count in parts[0][0].items() if parts else ():
            terms[atom] = terms.get(atom, 0) + factor * count
    return terms, tuple(offsets)


def strides_of(terms: dict[UOp, int], size: int) -> tuple[dict[UOp, float], set[UOp]]:
    """Bytes from one iteration of a loop to the next, on average; and the loops along which indices are loaded."""
    strides, scattered = dict[UOp, float](), set[UOp]()
    for atom, factor in terms.items():
        inside = [atom] if atom.op is Ops.RANGE else atom.toposort()
        loops = {node for node in inside if node.op is Ops.RANGE}
        if any(node.op in _GATHERED for node in inside):
            scattered |= loops
            continue
        for loop in loops:
            last = iterations(loop) - 1
            if last > 0:
                step = 1.0 if atom is loop else abs(_index_at(atom, loop, last) - _index_at(atom, loop, 0)) / last
                step = step or abs(_index_at(atom, loop, 1) - _index_at(atom, loop, 0))  # a remainder begins again
                strides[loop] = strides.get(loop, 0.0) + factor * size * step
    return {loop: abs(stride) for loop, stride in strides.items()}, scattered


def _index_at(node: UOp, loop: UOp, at: int) -> float:
    """Evaluate an index where one loop is at an iteration and all others are at their first."""
    values: dict[UOp, float] = {loop: at}
    for u in node.toposort():
        if u in values:
            continue
        given = [values[s] for s in u.src]
        if u.op is Ops.CONST:
            values[u] = u.arg[0] if isinstance(u.arg, tuple) else u.arg
        elif u.op.py is not None and u.op.is_elementwise:
            values[u] = u.op.py(*given)
        else:
            values[u] = 0 if u.op is Ops.RANGE else (given or [0])[0]
    return values[node]

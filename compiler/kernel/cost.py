"""The time of a kernel on a machine, with its parts: the slower of instructions and of data from each level of memory.

It is the model of execution, caches and memory (ECM). A loop body takes as long as its busiest unit, its chain of sums,
or the issue of its instructions. A cache fetches what the loops inside it do not find there. Everything about a machine
is in its row (ir/machine.py). Read by the search, TRY, chunks and slices of launches, chains, reports, DEBUG=2 and 3.
Why: docs/topics/schedules.md. Tests: tests/compiler/kernel/test_cost.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Final, NamedTuple

from kernmill.ir import LINE_BYTES, AxisKind, Level, Machine, Target, UOp, show_ns

from .facts import iterations
from .work import Body, Coverage, Loops, Work, read_work

__all__ = ["Cost", "CostPart", "kernel_cost", "work_cost"]

_FILLED: Final = 0.75  # of a cache, before data replace each other: it has ways
_UNITS: Final = 4.0  # exponent: two busy units of a core overlap almost completely
_VISIBLE: Final = 8.0  # iterations of a loop around short reductions that can overlap
_SCATTERED: Final = 3.0  # instructions of a lane: its index, its access, and its insertion


class CostPart(NamedTuple):
    """One part of a cost: what it is in words, and how long it would take alone. Units: nanoseconds."""

    name: str
    time_ns: float


class Cost(NamedTuple):
    """The time of one launch on one thread. `parts`: the largest first; they overlap, so that their sum is larger."""

    total_ns: float
    parts: tuple[CostPart, ...]

    @property
    def bound(self) -> str:
        """The largest part: what has to become faster."""
        return self.parts[0].name if self.parts else "nothing"

    @property
    def notable(self) -> tuple[CostPart, ...]:
        """The parts that take at least a hundredth of the time."""
        return tuple([part for part in self.parts if part.time_ns >= self.total_ns / 100])

    @property
    def why(self) -> str:
        """A sentence: *bound by data from L2: 3.1 us of 3.4 us*."""
        if not self.parts:
            return "bound by nothing"
        return f"bound by {self.bound}: {show_ns(self.parts[0].time_ns)} of {show_ns(self.total_ns)}"


def kernel_cost(uops: Sequence[UOp], target: Target) -> Cost:
    """Estimate a lowered kernel on its target's machine; symbolic sizes count at their greatest."""
    return work_cost(read_work(uops, target), target)


def work_cost(work: Work, target: Target) -> Cost:
    """Estimate work on the machine of a target."""
    machine = target.machine
    inside, names = 0.0, dict[str, float]()
    share = 1 / min(machine.units, max(_group_count(body) for body in work.bodies)) if machine.units > 1 else 1.0
    for body in work.bodies:
        parts = _core(body, machine)
        cycles, most = body.times * _overlapped(parts.values(), _UNITS), max(parts, key=parts.__getitem__)
        extra = body.masked * machine.mask_cycles
        extra += max(0.0, body.sums - target.vector_registers) * machine.spill_cycles
        entering = body.times / max(1, body.trips) * machine.loop_cycles
        for name, taken in ((most, cycles), ("masks and spills", body.times * extra), ("loops", entering)):
            names[name] = names.get(name, 0.0) + taken * share
            inside += taken * share
    data = {f"data from {level.name}": _fetching(work.coverages, level, machine) for level in machine.levels}
    total_ns = _overlapped((inside, *data.values()), machine.overlap) / machine.clock_ghz + machine.launch_ns
    shown = [CostPart(name, cycles / machine.clock_ghz) for name, cycles in (names | data).items() if cycles > 0]
    shown.append(CostPart("the launch", machine.launch_ns))
    return Cost(total_ns, tuple(sorted(shown, key=lambda part: -part.time_ns)))


def _overlapped(times: Iterable[float], overlap: float) -> float:
    """The time of things that overlap: near their sum for an exponent of 1, near the longest for a large one."""
    times = [time for time in times if time > 0]
    most = max(times, default=0.0)
    return most * sum((time / most) ** overlap for time in times) ** (1 / overlap) if most else 0.0


def _group_count(body: Body) -> int:
    """Work-groups that can run at once on the units of a GPU."""
    return prod(iterations(loop) for loop in body.loops if loop.arg[1] is AxisKind.GLOBAL)


def _core(body: Body, machine: Machine) -> dict[str, float]:
    """Cycles of one iteration, by what limits it."""
    vectors = body.vectors
    issue = (vectors + _SCATTERED * body.lanes) / machine.issue + body.scalar / machine.scalar
    chain = body.chain * machine.latency
    if chain:
        chain /= max(1.0, min(_VISIBLE, machine.window / (max(1.0, body.trips) * max(1.0, vectors))))
    return {
        "issue of instructions": issue * (machine.body_slowdown if vectors > machine.body_limit else 1.0),
        "arithmetic": body.fma / machine.fma,
        "integer operations": body.alu / machine.alu,
        "shuffles": body.shuffle / machine.shuffle,
        "vector units": (body.fma + body.alu + body.shuffle) / machine.vectors,
        "divisions": body.divide / machine.divide,
        "loads": body.load / machine.load,
        "stores": body.store / machine.store,
        "gathers": body.lanes * machine.lane_cycles,
        "the matrix unit": body.matrix / machine.matrix,
        "the chain of sums": chain,
    }


def _fetching(coverages: Sequence[Coverage], level: Level, machine: Machine) -> float:
    """Cycles in which a cache fetches what it has not: lines, and the beginnings of sequences of lines."""
    inside: dict[Loops, dict[UOp, float]] = {}
    for one in coverages:
        for depth in range(len(one.loops) + 1):
            memories = inside.setdefault(one.loops[:depth], {})
            memories[one.memory] = max(memories.get(one.memory, 0.0), one.inside[depth])
    fits = {loops for loops, memories in inside.items() if sum(memories.values()) <= _FILLED * level.size_bytes}
    cycles = 0.0
    is_last = level is machine.levels[-1]
    for one in coverages:
        if () in fits or (one.is_streamed and not is_last):
            continue
        # inside this loop everything fits, and so its next iteration finds what the one before it left
        depth = next((depth - 1 for depth in range(1, len(one.loops) + 1) if one.loops[:depth] in fits), len(one.loops))
        fetched = one.inside[depth] * prod(map(iterations, one.loops[:depth]))
        starts = fetched / one.run_bytes
        if one.is_store and not one.is_streamed:
            fetched *= 2  # lines are read before they are written
        elif one.is_streamed and one.is_single:
            fetched *= LINE_BYTES / one.memory.dtype.scalar.size_bytes  # each element is written by itself
        crowded = max(0.0, one.pieces / machine.streams - 1) * (machine.stream_slowdown - 1)
        cycles += fetched / level.bytes_per_cycle * (1 + crowded) + starts * level.run_cycles
    return cycles

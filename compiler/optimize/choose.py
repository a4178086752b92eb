"""THE LIST of strategies: the first one that matches makes the schedule of a kernel.

A strategy reads the Facts of a kernel and returns a Schedule, or None for kernels of a different kind. They
read loops, strides and kinds of accesses, not which layer or operation wrote the kernel.
Tests: tests/compiler/optimize/test_choose.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernmill.ir import Target, UOp

from .analysis import Facts, analyze
from .blocks import block_schedule
from .dots import dot_schedule
from .gpu import gpu_schedule
from .heuristic import few_rows_schedule, loops_schedule, running_schedule, scatter_schedule
from .panels import panels_schedule
from .rows import rows_schedule, short_rows_schedule
from .schedule import Schedule
from .units import unit_rows_schedule, unit_schedule
from .windows import window_schedule

__all__ = ["STRATEGIES", "Strategy", "choose"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy: one way to transform the loops of a kernel, and the kernels and targets it applies to."""

    schedule: Callable[[Facts], Schedule | None]
    applies: Callable[[Facts], bool]
    why: str
    by_rows: bool = False  # a thread has whole rows: values per row are computed once


def _has_lanes(facts: Facts) -> bool:
    return bool(facts.target.vector_bytes) and facts.lanes > 1 and bool(facts.sizes)


def _has_row_buffers(facts: Facts) -> bool:
    return _has_lanes(facts) and bool(facts.row_loops)


def scalar_schedule(facts: Facts) -> Schedule:
    """The empty schedule."""
    return Schedule(facts.ast)


STRATEGIES: tuple[Strategy, ...] = (
    Strategy(gpu_schedule, lambda facts: facts.target.group_items > 0,
             "work-groups share memory; the strategies below do not handle them"),
    Strategy(unit_schedule, lambda facts: bool(facts.target.units or facts.target.register_units),
             "a product for a matrix unit, several times faster than vectors"),
    Strategy(scatter_schedule, lambda facts: True, "reductions at computed indices: scatter the terms"),
    Strategy(unit_rows_schedule, _has_row_buffers,
        "attention: matrix-unit products between passes over row buffers", by_rows=True),
    Strategy(rows_schedule, _has_row_buffers,
        "attention without a matrix unit: rows are lanes, so no horizontal reduction", by_rows=True),
    Strategy(short_rows_schedule, _has_lanes,
        "several passes over rows that fit the registers: rows are lanes, so no horizontal reduction"),
    Strategy(dot_schedule, _has_lanes, "a product of bytes, four terms per instruction"),
    Strategy(block_schedule, _has_lanes, "such products over weight blocks with scales: quantized weights"),
    Strategy(panels_schedule, _has_lanes, "a product with a matrix whose rows are already interleaved"),
    Strategy(window_schedule, _has_lanes, "one operand read through a sliding window: a convolution"),
    Strategy(running_schedule, _has_lanes, "short reductions over the same terms, computed together: prefix sums"),
    Strategy(few_rows_schedule, _has_lanes, "small batch: the matrix is read once, in its current layout"),
    Strategy(loops_schedule, _has_lanes,
        "all others: access streams, register tiles, partial sums, from access strides"),
    Strategy(scalar_schedule, lambda facts: True, "without vectors the loops are unchanged"),
)  # fmt: skip


def choose(ast: UOp, target: Target) -> Schedule:
    """A schedule for the kernel; without actions for a target without vectors, threads and work-items."""
    facts = analyze(ast, target)
    tried = ((one, one.schedule(facts)) for one in STRATEGIES if one.applies(facts))
    strategy, schedule = next((one, made) for one, made in tried if made is not None)
    shared = facts.row_loops if strategy.by_rows else facts.outputs
    if target.has_threads and schedule.loops and schedule.loops[0] in shared:
        schedule.add("thread", schedule.loops[0])
    return schedule

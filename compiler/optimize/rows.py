"""Schedules of kernels with row buffers for intermediate values: softmax, attention.

Such a kernel processes one row after another, in several passes. There are two shapes:
- along the row: each pass takes its lanes from its own loop, as if it were alone (`passes_along_rows`);
- across rows: if passes are products that use each loaded value for many rows, or if rows fit the registers, the lanes
  are rows. Every pass is then elementwise over the lanes, without horizontal reductions, and data shared by rows are
  scalars (`rows_schedule`, `short_rows_schedule`).

Nothing here depends on what a kernel computes. Tests: tests/compiler/optimize/test_rows.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from kernmill.ir import Ops, UOp, closed_ranges

from ..kernel.facts import names_of
from .analysis import Access, Facts
from .schedule import Schedule
from .tiles import BLOCKS

__all__ = ["passes_along_rows", "prefetch_next_row", "products_across", "rows_schedule", "short_rows_schedule"]

_VECTORS, _TILE = BLOCKS[2]  # vectors of rows worked on together, and results of a product for each of them
_TERMS = 4  # unrolled reduction elements of a product
_LONG_ROW = 16  # vectors; the loop over a shorter row may be unrolled completely, and has no latency to hide
_SPREAD = 2  # unrolled iterations of a pass that is not a product


@dataclass(slots=True)
class _Pass:
    """A REDUCE or AFTER: its loops, the loops around it, and its loads inside its loops, except results of earlier
    passes."""

    node: UOp
    loops: list[str]
    around: set[str]
    loads: list[Access]

    def shared(self, loop: str) -> bool:
        """True if some loads depend on the loop and others are invariant in it."""
        changing = [a.depends_on(loop) for a in self.loads]
        return any(changing) and not all(changing)


def passes_along_rows(schedule: Schedule, facts: Facts) -> None:
    """Lanes for the loops that fill the rows; the reductions and the output get theirs as in any kernel."""
    passes, lanes = _passes(facts), facts.lanes
    for one in passes:
        name = one.loops[-1]
        size = facts.sizes[name]
        if one.node.op is not Ops.AFTER or size < lanes or any(a.step(name) not in (0, 1) for a in one.loads):
            continue
        if any(name in r.around for r in passes):
            continue  # a reduction for each element of the row: its own loop has the lanes
        schedule.cut("vectorize", name, lanes)
        if size // lanes >= 2 * _SPREAD:
            schedule.cut("unroll", name, _SPREAD)


def prefetch_next_row(schedule: Schedule, facts: Facts) -> None:
    """If several passes read a row, the first waits for memory: let the last one prefetch the next row."""
    order = facts.ast.toposort()
    position = {name: number for number, node in enumerate(order) for name in names_of(closed_ranges(node))}
    passes: dict[UOp, dict[str, Access]] = {}
    for a in facts.loads:
        if a.memory.op is Ops.PARAM:
            passes.setdefault(a.memory, {}).update({name: a for name in a.steps if a.step(name) == 1})
    row_bytes = [max(facts.sizes[name] for name in loads) * m.dtype.size_bytes for m, loads in passes.items() if loads]
    row_bytes += [node.arg[1] * node.dtype.size_bytes for node in order if node.op is Ops.LOCAL]
    for memory, loads in passes.items():
        if len(loads) < 2 or not facts.target.is_streamed(memory.arg[1] * memory.dtype.size_bytes):
            continue
        last = max(loads, key=lambda name: position.get(name, len(order)))
        a = loads[last]
        rows = [name for name in facts.outputs if a.depends_on(name) and name != last]
        distance = (a.step(rows[-1]) or 0 if rows else 0) * a.size_bytes
        length = facts.sizes[last] * a.size_bytes
        if _LONG_ROW * facts.target.vector_bytes <= length <= distance <= facts.target.l2_bytes // 4:
            schedule.add(
                "prefetch", distance, last, *(("L2",) if length + sum(row_bytes) > facts.target.l1_bytes else ())
            )
            return


def products_across(facts: Facts, lanes: int) -> tuple[str, list[_Pass], list[tuple[_Pass, str]]]:
    """For a kernel whose rows can be lanes, return the loop over them, all passes, and the products with the loop
    over results that share the data of a row. Return no products for other kernels."""
    passes, fixed = _passes(facts) if lanes > 1 else [], facts.row_loops
    products = [(one, loop) for one in passes if (loop := _product_loop(one, fixed)) is not None]
    wide = [name for name in reversed(fixed) if facts.sizes[name] >= lanes]
    sharing = (n for n in wide if all(any(not a.depends_on(n) for a in one.loads) for one, _ in products))
    rows = next(sharing, "")
    return rows, passes, products if rows else []


def rows_schedule(facts: Facts) -> Schedule | None:
    """The schedule across rows; None where it does not fit."""
    rows, passes, products = products_across(facts, facts.lanes)
    if not products:
        return None
    schedule, sizes, lanes = Schedule(facts.ast), facts.sizes, facts.lanes
    schedule.cut("vectorize", rows, lanes)
    schedule.cut("unroll", rows, _VECTORS if sizes[rows] >= _VECTORS * lanes else 1)
    tiled = {loop for _, loop in products}
    for loop in sorted(tiled):
        schedule.cut("unroll", loop, min(_TILE, sizes[loop]))
    terms = dict.fromkeys(one.loops[-1] for one, _ in products)
    rounds = [name for name in terms if name not in tiled and sizes[name] % _TERMS == 0 and sizes[name] >= 4 * _TERMS]
    longer = {name: schedule.cut("unroll", name, _TERMS) for name in rounds}
    for name in dict.fromkeys(one.loops[-1] for one in passes if all(one is not product for product, _ in products)):
        if name not in tiled and sizes[name] >= 2 * _SPREAD:
            schedule.cut("unroll" if name in facts.row_writers else "rfactor", name, _SPREAD)
    stages: dict[tuple[str, ...], None] = {}
    for one, tile in products:
        copies = [inner for name in one.loops for inner in longer.get(name, [])]
        blocks = [tile] if sizes[tile] > _TILE else []
        stages |= dict.fromkeys(_transposed(one, rows, tile, [*copies, *schedule.unrolled_loops(rows)]))
        stages |= dict.fromkeys(
            _widened(one, rows, tile, facts.row_loops, [*copies, *blocks, *schedule.unrolled_loops(tile)])
        )
    for stage in stages:
        schedule.add("stage", *stage)
    return schedule


def short_rows_schedule(facts: Facts) -> Schedule | None:
    """The schedule of several passes over rows that fit the registers: rows are lanes, and all other loops are
    unrolled. None where rows are longer, or too few."""
    passes = _passes(facts)
    fixed = [name for name in facts.outputs if all(name in one.around for one in passes)]
    inside = [name for name in facts.outputs if name not in fixed]
    within = [*((*one.loops, *(one.around - {*fixed})) for one in passes), inside]
    names = list(dict.fromkeys(chain(*within)))
    wide = [name for name in fixed if facts.sizes[name] >= facts.lanes and name not in facts.symbolic]
    most = max((facts.iterations(loops) for loops in within), default=0)
    is_short = most <= facts.target.vector_registers and not facts.symbolic.intersection(names)
    if not wide or not inside or not is_short or not passes:
        return None
    schedule = Schedule(facts.ast)
    schedule.cut("vectorize", wide[-1], facts.lanes)
    for name in names:
        schedule.cut("unroll", name, facts.sizes[name])
    return schedule


def _transposed(one: _Pass, rows: str, tile: str, lanes: list[str]) -> list[tuple[str, ...]]:
    """Return the stages that pack what the lanes of a product would gather in each iteration."""
    gathered = [
        a for a in one.loads if a.step(rows) not in (0, 1) and not a.depends_on(tile) and a.memory.op is Ops.PARAM
    ]
    return [(slot, *one.loops, *lanes) for slot in sorted({a.slot for a in gathered})]


def _widened(one: _Pass, rows: str, tile: str, fixed: list[str], copied: list[str]) -> list[tuple[str, ...]]:
    """Narrow floats that all rows share are copied once, so that they are converted once (convert_packed.py)."""
    shared = [a for a in one.loads if not a.depends_on(rows) and a.depends_on(tile) and a.memory.op is Ops.PARAM]
    narrow = [a for a in shared if a.node.dtype.is_float and a.size_bytes < 4]
    return [
        (a.slot, *sorted(n for n in a.steps if a.depends_on(n) and n not in (*fixed, tile)), *copied) for a in narrow
    ]


def _passes(facts: Facts) -> list[_Pass]:
    return [_pass(facts, node, loops) for node in facts.ast.toposort() if (loops := closed_ranges(node))]


def _pass(facts: Facts, node: UOp, closed: tuple[UOp, ...]) -> _Pass:
    own, loops = (node, *node.src), names_of(closed)
    inside = set(node.toposort(stop=lambda u: u not in own and bool(closed_ranges(u))))
    loads = [a for a in facts.loads if a.node in inside and any(a.depends_on(name) for name in loops)]
    return _Pass(node, loops, set(names_of(node.ranges)), loads)


def _product_loop(one: _Pass, fixed: list[str]) -> str | None:
    """Return the loop over results of a product that share the data of a row."""
    around = sorted(one.around - set(fixed)) if one.node.op is Ops.REDUCE else []
    return next((name for name in around if one.shared(name)), None)

"""Schedules for devices with work-items: what a work-group computes, what its work-items share, what each of them
stores.

Three cases, told apart by access strides, never by what a kernel computes:
- a product: two output loops, each invariant for some load, make a tile. A work-group shares the operands of a block of
  the reduction (elements of overlapping windows only once), and a work-item computes a square of results;
- reductions: the work-items of a group reduce one row together with coalesced loads, or several columns at once;
- all others: a work-item for every few elements; blocks are transposed in shared memory if reads and writes are
  contiguous along different loops.

No GPU was available: the constants come from published work (docs/topics/opencl.md). Tests:
tests/compiler/optimize/test_gpu.py.
"""

from __future__ import annotations

from math import prod
from typing import Final

from kernmill.ir import BANK_BYTES, DOT_SUMS, Ops

from ..lower.find_dots import is_multiplied, terms_of_a_dot
from .analysis import Access, Facts, ReductionGroup
from .schedule import Schedule
from .units import find_unit

__all__ = ["gpu_schedule"]

_TILES: Final = ((16, 8), (16, 4), (8, 4), (8, 2))  # items along each side of a tile, results along each side
# steps of a matrix unit: at once and in sequence, down and across
_STEPS: Final = ((4, 2, 2, 8), (2, 2, 2, 4), (2, 1, 2, 1))
_GROUPS: Final = 128  # that keep a device busy; a smaller tile is taken rather than fewer
_TERMS: Final = (16, 8, 32, 4)  # of a block that a group shares
_MANY: Final = 1 << 15  # results from which on every work-item has its own
_SHORT: Final = 32  # work-items that run in lockstep; a reduction that is not longer is one item's
_ROWS: Final = 8  # rows of a work-item when a matrix is read once, and items across a block that is transposed


def _lanes(facts: Facts, loop: str, accesses: list[Access]) -> int:
    """Return the vector width of a work-item along a loop: a full register if its values are contiguous."""
    is_whole = loop not in facts.symbolic and facts.sizes[loop] % facts.lanes == 0
    steps = {a.step(loop) for a in accesses} - {0}
    return facts.lanes if is_whole and steps == {1} else 1


def gpu_schedule(facts: Facts) -> Schedule:
    """A schedule for the kernel."""
    schedule = Schedule(facts.ast)
    main = facts.main
    single = main if len(facts.groups) == 1 and not facts.loops_with_row_buffers else None
    rows = facts.row_loops if facts.loops_with_row_buffers else facts.outputs
    spread = [name for name in rows if all(name in g.around for g in facts.groups) and name not in facts.symbolic]
    if main is None and not facts.loops_with_row_buffers:
        _schedule_elementwise(schedule, facts)
    elif not _unit_product(schedule, facts) and not (single and _product(schedule, facts, single)):
        _sums(schedule, facts, main, spread)
    grid = [name for name in schedule.loops if name in spread and all(name in a.steps for a in facts.stores)]
    if grid:
        schedule.try_add("grid", *grid)
    return schedule


def _schedule_elementwise(schedule: Schedule, facts: Facts) -> None:
    nearest = next((n for n in reversed(facts.outputs) if facts.stores[0].step(n) == 1), None)
    if nearest is None:
        return
    side, items = _SHORT, _ROWS
    across = next((n for n in facts.outputs if n != nearest and any(a.step(n) == 1 for a in facts.loads)), None)
    crossed = [a for a in facts.loads if across and a.step(across) == 1 and a.step(nearest) not in (0, 1, None)]
    large = across is not None and min(facts.sizes[nearest], facts.sizes[across]) >= side
    if crossed and large and facts.target.group_items >= side * items:
        schedule.try_add("local", nearest, side)
        schedule.try_add("unroll", across, side // items)
        schedule.try_add("local", across, items)
        for slot in dict.fromkeys(a.slot for a in crossed):
            schedule.try_add("stage", slot, f"{across}.l", f"{across}.u", f"{nearest}.l")
        return
    schedule.try_add("vectorize", nearest, _lanes(facts, nearest, [*facts.stores, *facts.loads]))


# --- products ---------------------------------------------------------------------------------------------------------
def _unit_product(schedule: Schedule, facts: Facts) -> bool:
    """A product for a matrix unit: the items of a step, of which a group has several, keep a block of results."""
    found = find_unit(facts)
    if found is None or not found[1].items:
        return False
    product, unit = found
    row, column, sizes = product.rows, product.columns, facts.sizes
    (rows, _), (columns, lanes) = unit.items
    fits = [t for t in _STEPS if t[0] * t[2] * rows * columns <= facts.target.group_items
            and sizes[row] > t[1] * unit.m and sizes[column] > t[3] * unit.n]  # fmt: skip
    if not fits:
        return False
    tiles = [(t[0] * t[1] * unit.m, t[2] * t[3] * unit.n) for t in fits]
    others = facts.iterations([n for n in facts.outputs if n not in (row, column)])
    groups = [others * -(-sizes[row] // high) * -(-sizes[column] // wide) for high, wide in tiles]
    chosen = next((n for n, count in enumerate(groups) if count >= _GROUPS), -1)
    down, tall, across, broad = fits[chosen]
    cuts = ((row, unit.m), (column, unit.n), (product.inner, unit.k))
    i, j, deep = (schedule.add("split", name, amount)[name] for name, amount in cuts)
    group = schedule.add("split", deep, unit.group)[deep]
    block, panel = (
        [*schedule.cut("unroll", name, results), *schedule.cut("local", name, items)][::-1]
        for name, results, items in ((row, tall, down), (column, broad, across))
    )
    copied = schedule.add("tensorize", i, j)
    no_lanes = not facts.target.vector_bytes or sizes[column] % tiles[chosen][1]  # or a mask for each two of them
    schedule.cut("unroll" if no_lanes else "vectorize", j, lanes)
    own = [*schedule.cut("local", i, rows), *schedule.cut("local", j, columns)]
    schedule.cut("unroll", i, unit.m // rows)
    schedule.order((*(name for name in schedule.loops if name not in own), *own))
    schedule.add("stage", product.right.slot, *panel, deep, copied[j], group)
    schedule.add("stage", product.left.slot, *block, copied[i], deep, group)
    return True


def _product(schedule: Schedule, facts: Facts, main: ReductionGroup) -> bool:
    """Tile the results for a work-group; return False if no pair of loops reuses loads."""
    fixed = [n for n in facts.outputs if n in main.around and n not in facts.symbolic]
    loops = [n for n in fixed if facts.sizes[n] >= prod(_TILES[-1])]
    pair = next(((row, column) for column in reversed(loops) for row in loops if row != column
                 and main.operand(row, column) and main.operand(column, row)), None)  # fmt: skip
    if pair is None:
        return False
    row, column = pair
    others = facts.iterations([n for n in facts.outputs if n not in pair])

    least = min(facts.sizes[row], facts.sizes[column])

    def groups(tile: tuple[int, int]) -> int:
        return others * prod(-(-facts.sizes[n] // prod(tile)) for n in (row, column))

    tiles = [t for t in _TILES if t[0] ** 2 <= facts.target.group_items and prod(t) <= least]
    if not tiles:
        return False
    items, results = next((t for t in tiles if groups(t) >= _GROUPS), tiles[min(len(tiles) - 1, 1)])
    # of a window: the channels, split into blocks of whole windows
    terms = max(main.loops, key=lambda n: facts.sizes[n])
    window = [n for n in main.loops if n != terms]
    block = _block(facts, main, terms, items * results * facts.iterations(window))
    right = [a for a in main.operand(column, row) if a.step(column) != 0]
    width = _lanes(facts, column, right) if results % max(1, facts.lanes) == 0 else 1
    if width > 1:
        schedule.try_add("vectorize", column, width)
    schedule.try_add("local", column, items)
    schedule.try_add("unroll", column, results // width)
    schedule.try_add("unroll", row, results)
    schedule.try_add("local", row, items)
    if not block:
        return True
    inside = f"{terms}.s" if facts.sizes[terms] > block and schedule.try_add("split", terms, block) else terms
    together = _terms_of_an_instruction(schedule, facts, inside, block)
    across = [*[f"{column}.u"] * (results != width), f"{column}.l", *[f"{column}.v"] * (width > 1)]
    parts = {row: [f"{row}.l", f"{row}.u"], column: across}
    for loop, other in ((row, column), (column, row)):
        for slot in dict.fromkeys(a.slot for a in main.operand(loop, other)):
            schedule.try_add("stage", slot, inside, *window, *parts[loop], *together)
    return True


def _terms_of_an_instruction(schedule: Schedule, facts: Facts, inside: str, block: int) -> list[str]:
    """Split off the terms that one instruction adds up, if the machine has it for such values."""
    product = facts.product if facts.target.dots else None
    if product is None or not is_multiplied(product.left.dtype, product.right.dtype, facts.target):
        return []
    terms = terms_of_a_dot(product.left.dtype)
    if product.dtype is not DOT_SUMS[product.left.dtype] or block % terms or block == terms:
        return []
    return schedule.cut("unroll", inside, terms)


def _block(facts: Facts, main: ReductionGroup, terms: str, side: int) -> int:
    """Return the reduction elements of both operands in shared memory at a time; 0: indices are not affine, or no
    room."""
    if any(n in facts.symbolic or a.step(n) is None for n in main.loops for a in main.loads):
        return 0
    size = facts.sizes[terms]
    bytes_each = 2 * side * max(a.size_bytes for a in main.loads) + 2 * BANK_BYTES
    room = [n for n in (*_TERMS, size) if n * bytes_each <= facts.target.local_bytes and n <= size]
    return next((n for n in room if size % n == 0 and n <= max(_TERMS)), room[0] if room else 0)


# --- reductions -------------------------------------------------------------------------------------------------------
def _sums(schedule: Schedule, facts: Facts, main: ReductionGroup | None, spread: list[str]) -> None:
    items = facts.target.group_items
    if main is not None and len(facts.groups) == 1 and not facts.loops_with_row_buffers:
        terms = max(main.loops, key=lambda n: facts.sizes[n])
        largest = max(main.loads, key=lambda a: facts.iterations(list(a.steps)), default=None)
        nearest = next((n for n in reversed(spread) if largest and largest.step(n) == 1), None)
        if facts.iterations(main.loops) <= _SHORT:
            return  # one work-item computes the whole reduction
        if nearest is not None:
            rows = [n for n in spread if n != nearest and any(n not in a.steps for a in main.loads)]
            if rows:
                schedule.try_add("unroll", rows[-1], min(_ROWS, facts.sizes[rows[-1]]))
            if facts.iterations([n for n in spread if n not in rows[-1:]]) < _MANY:
                schedule.try_add("local", nearest, min(_SHORT, items))
                schedule.try_add("share", terms, max(1, items // _SHORT))
            return
    _together(schedule, facts, spread)


def _together(schedule: Schedule, facts: Facts, spread: list[str]) -> None:
    """Use a work-group per row: its work-items share the reductions over it, fill its row buffers, and write its
    results."""
    items = facts.target.group_items
    local_bytes = sum(n.arg[1] * n.dtype.size_bytes for n in schedule.ast.toposort() if n.op is Ops.LOCAL)
    if local_bytes > facts.target.local_bytes // 2:
        return  # each work-item has its own row buffers, in private memory
    longest = max([facts.iterations(g.loops) for g in facts.groups], default=1)
    while items > _SHORT and items * facts.lanes > longest:
        items //= 2
    for group in facts.groups:
        name = max(group.loops, key=lambda n: facts.sizes[n])
        if group.around <= set(spread) and facts.sizes[name] > 1:
            schedule.try_add("vectorize", name, _lanes(facts, name, group.loads))
            schedule.try_add("share", name, items)
    for name in facts.row_writers:
        schedule.try_add("local", name, items)
        schedule.try_add("share", f"{name}.r", items)
    inner = [n for n in facts.outputs if n not in spread and facts.sizes[n] > 1]
    if inner:
        schedule.try_add("local", inner[-1], items)

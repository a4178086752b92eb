"""The schedule of a product for a target with a matrix unit.

The unit computes blocks of results, two by two, into memory; row loops with lanes read them from there, run the
epilogue and store, with masks at the ends. Both operands are packed as the unit needs them (lower/find_mmas.py) unless
they are already. Panels of the columns, up to half of L2, are packed for all tiles of rows, and the rows for all panels
of a block. Nothing here depends on the meaning of a kernel beyond that one reduction. Why: docs/topics/matrix-units.md.
Tests: tests/compiler/optimize/test_units.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from kernmill.ir import Ops, Target, Unit, UOp, closed_ranges, linear, memory_of

from ..kernel.facts import names_of
from .analysis import Access, Facts, Product
from .packing import blocks, in_blocks
from .rows import products_across
from .schedule import Schedule
from .staging import share_axis
from .tiles import LEAST_READERS, MOST_VECTORS

__all__ = ["find_unit", "unit_rows_schedule", "unit_schedule"]

_SIDE = 2  # adjacent blocks of results, in each direction, in the eight registers of a unit
_Loops: TypeAlias = tuple[str, ...]
_Steps: TypeAlias = tuple[str, str, str, Mapping[str, str]]


def find_unit(facts: Facts) -> tuple[Product, Unit] | None:
    """Return the product that a kernel is and the matrix unit for it; None without either, or if the gain is small."""
    target = facts.target
    product = facts.product if target.units or target.register_units else None
    if product is None or not product.rows:
        return None
    unit, right = _unit_of(facts, product), product.right
    extents = {product.rows: unit.m, product.columns: unit.n, product.inner: unit.k} if unit else {}
    if unit is None or any(2 * facts.sizes[name] < extent for name, extent in extents.items()):
        return None  # most of a block would be empty
    side = _side_of(unit, target)
    if unit in target.register_units and any(
        facts.sizes[name] < LEAST_READERS * side * extents[name] for name in (product.rows, product.columns)
    ):
        return None  # the copies would be read too seldom
    if unit.items and not (product.left.is_affine and right.is_affine):
        return None  # work-items pack by steps of loops
    size_bytes = facts.sizes[product.inner] * facts.sizes[product.columns] * right.size_bytes
    is_in_order = target.is_streamed(size_bytes) and right.step(product.columns) == 1
    if is_in_order and facts.sizes[product.rows] <= side * unit.m:
        return None  # one block of results: the matrix is read once, in memory order, not by panels
    return product, unit


def _side_of(unit: Unit, target: Target) -> int:
    """Return how many adjacent blocks of results, in each direction, are in registers with their operands."""
    if unit not in target.register_units:
        return _SIDE
    return max(side for side in range(1, target.vector_registers) if side * (side + 2) <= target.vector_registers)


def unit_schedule(facts: Facts) -> Schedule | None:
    """The schedule without its threads; None where the kernel is something else."""
    found = find_unit(facts)
    return None if found is None else _tiled(facts, *found)


def _tiled(facts: Facts, whole: Product, unit: Unit) -> Schedule:
    schedule, sizes, target = Schedule(facts.ast), facts.sizes, facts.target
    rows, columns, side = whole.rows, whole.columns, _side_of(unit, target)
    panels, tiles = -(-sizes[columns] // (side * unit.n)), -(-sizes[rows] // (side * unit.m))
    product, depth = _cut_terms(schedule, facts, whole, unit)
    column = schedule.add("split", columns, unit.n)[columns]
    schedule.cut("unroll", columns, min(side, -(-sizes[columns] // unit.n)))
    row, deep, near, results = _unit_steps(schedule, (product, unit), column, min(side, -(-sizes[rows] // unit.m)))
    rows_bytes = sizes[rows] * depth * unit.a.size_bytes
    across, down = blocks(sizes[columns], panels, sizes[rows], rows_bytes, target)
    outer, inside = in_blocks(schedule, facts, {columns: (panels, across), rows: (tiles, down)})
    each, panel_bytes = -(-panels // across), side * unit.n * depth * unit.b.size_bytes
    several = -(-each // -(-2 * each * panel_bytes // target.l2_bytes))  # that fit half of L2 together
    several = several if 2 * rows_bytes > target.l2_bytes else 1
    beside = schedule.cut("split", inside[columns][-1], several)
    schedule.cut("vectorize", column, min(unit.n, target.lanes(unit.c)))
    schedule.order((*outer, *inside[columns], whole.inner, *inside[rows], *beside, row, column))
    terms = [product.inner] if depth > unit.k else []
    walked = [name for name in beside if name in schedule.loops]
    held = [name for name in inside[rows] if name in schedule.loops]
    right = (*walked, *terms, *schedule.unrolled_loops(columns))
    _pack(schedule, facts, product.right, right, (deep, near, results[column]), unit)
    left = (*held, *terms, *schedule.unrolled_loops(rows))
    _pack(schedule, facts, product.left, left, (deep, near, results[row]), unit, is_left=True)
    return schedule


def _pack(
    schedule: Schedule,
    facts: Facts,
    operand: Access,
    around: _Loops,
    block: _Loops,
    unit: Unit,
    *,
    is_left: bool = False,
) -> None:
    """Read an operand block by block, packed over these loops unless it is stored so already."""
    deep, near, side = block
    wanted = {side: unit.k, deep: unit.group} if is_left else {deep: unit.n * unit.group, side: unit.group}
    wanted.pop(near, None)
    order = schedule.ast.toposort()
    indices = (n.src[0] for n in order if n.op is Ops.LOAD and memory_of(n.src[0]) is operand.memory)
    index = next(index for index in indices if side in names_of(index.ranges))
    terms = ((name, atom, step) for atom, step in linear(index.src[1])[0].items() for name in names_of(atom.ranges))
    steps = {name: step if atom.op is Ops.RANGE else 0 for name, atom, step in terms if name in block}
    is_whole = index.gate is None and operand.node.dtype is operand.dtype
    if not is_whole or steps != wanted | {near: 1}:
        made = schedule.add("stage", operand.slot, *around, *wanted, near)
        if facts.target.vector_bytes:
            _copy(schedule, steps.get(near) == 1, (made[deep], made[near], made[side]), unit, is_left=is_left)


def _cut_terms(schedule: Schedule, facts: Facts, product: Product, unit: Unit) -> tuple[Product, int]:
    """Block a long reduction in whole steps, so that half of L2 holds several panels of a block; return the elements
    of a block. Rows that must be packed are packed for the whole reduction at once."""
    side = _side_of(unit, facts.target)
    size, panel = facts.sizes[product.inner], side * unit.n * unit.b.size_bytes
    panels = min(LEAST_READERS, -(-facts.sizes[product.columns] // (side * unit.n)))
    least = -(-2 * size * panel * panels // facts.target.l2_bytes)
    number = next((n for n in range(least, 2 * least) if size % (n * unit.k) == 0), 1)
    if number == 1 or product.left.is_affine or not schedule.try_add("accumulate", product.inner, size // number):
        return product, size
    return replace(product, inner=f"{product.inner}.s"), size // number


def _unit_steps(schedule: Schedule, found: tuple[Product, Unit], column: str, high: int) -> _Steps:
    """Split the loops for a step of the unit: a row, groups of reduction elements, the elements of one; and those of
    its results."""
    product, unit = found
    cuts = ((product.rows, unit.m), (product.inner, unit.k))
    row, deep = (schedule.add("split", name, amount)[name] for name, amount in cuts)
    near = schedule.add("split", deep, unit.group)[deep] if unit.k > unit.group else deep
    schedule.cut("unroll", product.rows, high)
    return row, deep, near, schedule.add("tensorize", row, column)


# --- products between passes over row buffers
def unit_rows_schedule(facts: Facts) -> Schedule | None:
    """Schedule a kernel with row buffers whose products all use the matrix unit; None for other kernels. The rows
    are lanes (rows.py), and also columns of blocks of results: a row buffer is an operand without packing, if its
    neighbours are interleaved."""
    rows, _, products = products_across(facts, facts.lanes if facts.target.units and not facts.symbolic else 0)
    found = [_of_rows(facts, one.node, (loop, rows)) for one, loop in products]
    if not found or None in found:
        return None
    schedule, sizes = Schedule(facts.ast), facts.sizes
    (lanes,) = schedule.cut("vectorize", rows, facts.lanes)
    schedule.cut("unroll", rows, min(_SIDE, -(-sizes[rows] // facts.lanes)))
    for product, unit in filter(None, found):
        high, inner = sizes[product.rows] // unit.m, product.inner
        row, deep, near, results = _unit_steps(schedule, (product, unit), lanes, min(_SIDE, high))
        schedule.cut("unroll", row, unit.m if row in schedule.loops else MOST_VECTORS)
        block = [product.rows] if high > _SIDE else []
        held = [*block, *schedule.unrolled_loops(product.rows), inner]
        left = schedule.add("stage", product.left.slot, *held, results[row], deep, near)
        _copy(schedule, product.left.step(inner) == 1, (left[deep], left[near], left[results[row]]), unit, is_left=True)
        if product.right.memory.op is Ops.LOCAL:
            kept = names_of(closed_ranges(product.right.node.src[0].src[0]))[-1]
            schedule.add("pack_words", kept)
            schedule.cut("unroll", kept, unit.group)
            continue
        side = schedule.unrolled_loops(rows)[:-1]
        right = schedule.add("stage", product.right.slot, inner, *side, deep, results[lanes], near)
        _copy(schedule, product.right.step(inner) == 1, (right[deep], right[near], ""), unit)
    return schedule


def _of_rows(facts: Facts, total: UOp, loops: tuple[str, str]) -> tuple[Product, Unit] | None:
    """Return the product if it has whole blocks of results and more reduction elements than one step: its operands
    would be in tiles for all results."""
    found = sorted(facts.operands(total), key=lambda a: loops[0] not in a.steps)
    if not found or loops[0] in found[1].steps or found[0].memory.op is not Ops.PARAM:
        return None
    product = Product(total.dtype, found[0], found[1], names_of(closed_ranges(total))[0], *loops)
    unit, terms = _unit_of(facts, product), facts.sizes[product.inner]
    is_whole = unit is not None and facts.sizes[loops[0]] % unit.m == terms % unit.k == 0 and terms > unit.k
    return (product, unit) if unit is not None and is_whole and unit.n == facts.lanes else None


def _unit_of(facts: Facts, product: Product) -> Unit | None:
    """Return the matrix unit that multiplies these dtypes, if copies of both operands would have its layout."""
    pairs = ((product.rows, product.left), (product.columns, product.right))
    if any(share_axis(operand.node, (name, product.inner)) for name, operand in pairs):
        return None
    kinds = (product.left.dtype, product.right.dtype, product.dtype)
    units = (*facts.target.units, *facts.target.register_units)
    return next((unit for unit in units if (unit.a, unit.b, unit.c) == kinds), None)


def _copy(
    schedule: Schedule, is_along: bool, loops: tuple[str, str, str], unit: Unit, *, is_left: bool = False
) -> None:
    """Return how an operand is packed: in memory order if that is the unit's layout, else transposed or interleaved
    in registers; `side` is empty if its loop already has the lanes."""
    deep, near, side = loops
    if deep == near and is_along:
        schedule.cut("vectorize", near, unit.k)
        return
    schedule.cut("unroll", near, unit.group)
    if is_left and is_along:
        schedule.cut("vectorize", deep, unit.k // unit.group)
        return
    if (is_left or is_along) and deep != near:
        schedule.cut("unroll", deep, unit.k // unit.group)
    if side:
        schedule.cut("vectorize", side, unit.m if is_left else unit.n)

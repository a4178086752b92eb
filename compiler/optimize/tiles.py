"""The schedule of a sum of products for a target with a matrix unit.

Blocks of results are computed by the unit, two by two, and put in memory; rows of lanes read them from there, do what
is left to do and store them, with masks at the ends. Both operands are packed as the unit wants them (lower/tile.py): a
panel of the columns for all tiles of rows, the rows for all panels of a block. Nothing here asks what a kernel computes
beyond that one sum. docs/decisions/0020-tiles.md. Tests: tests/compiler/optimize/test_tiles.py.
"""

from __future__ import annotations

from kernmill.ir import Target, Unit

from .look import Shape, is_streamed
from .packing import blocks, in_blocks
from .plan import Plan
from .products import Product, find_product
from .staging import walked_together

__all__ = ["find_unit", "tile_plan"]

_FEW_ROWS = 48  # a product of up to so many waits for memory
_SIDE = 2  # blocks of results side by side, and one below the other


def find_unit(shape: Shape, target: Target) -> tuple[Product, Unit] | None:
    """The product that a kernel is and what of the target does it; None without either, or where little is gained."""
    product = find_product(shape) if target.tiles else None
    if product is None or not product.rows:
        return None
    left, right = product.left, product.right
    kinds = (left.node.dtype, right.node.dtype, product.dtype)
    unit = next((unit for unit in target.tiles if (unit.a, unit.b, unit.c) == kinds), None)
    extents = {product.rows: unit.m, product.columns: unit.n, product.inner: unit.k} if unit else {}
    if unit is None or any(2 * shape.sizes[name] < extent for name, extent in extents.items()):
        return None  # most of a block would be empty
    for name, operand in ((product.rows, left), (product.columns, right)):
        if walked_together(operand.node, (name, product.inner)):
            return None  # its copy would not lie as the unit wants it
    size_bytes = shape.sizes[product.inner] * shape.sizes[product.columns] * right.size_bytes
    is_in_order = is_streamed(size_bytes, target) and right.step(product.columns) == 1
    if is_in_order and shape.sizes[product.rows] <= _FEW_ROWS:
        return None  # it is read in the order in which it lies, not by panels
    return product, unit


def tile_plan(shape: Shape, target: Target) -> Plan | None:
    """The schedule without its threads; None where the kernel is something else."""
    found = find_unit(shape, target)
    return None if found is None else _tiled(shape, *found, target)


def _tiled(shape: Shape, product: Product, unit: Unit, target: Target) -> Plan:
    plan, sizes = Plan(shape.ast), shape.sizes
    rows, columns, inner = product.rows, product.columns, product.inner
    high, wide = -(-sizes[rows] // unit.m), -(-sizes[columns] // unit.n)
    cuts = ((rows, unit.m), (columns, unit.n), (inner, unit.k))
    row, column, deep = (plan.add("split", name, amount)[name] for name, amount in cuts)
    near = plan.add("split", deep, unit.group)[deep]
    for name, count in ((rows, high), (columns, wide)):
        plan.cut("unroll", name, min(_SIDE, count))
    panels, tiles = -(-wide // _SIDE), -(-high // _SIDE)
    results = plan.add("tile", row, column)
    size_bytes = sizes[rows] * sizes[inner] * unit.a.size_bytes
    across, down = blocks(sizes[columns], panels, sizes[rows], size_bytes, target)
    outer, inside = in_blocks(plan, shape, {columns: (panels, across), rows: (tiles, down)})
    plan.cut("vectorize", column, min(unit.n, target.lanes(unit.c)))
    plan.order((*outer, *inside[columns], *inside[rows], row, column))
    terms = [inner] if sizes[inner] > unit.k else []
    held = [name for name in inside[rows] if name in plan.loops]
    right = plan.add("stage", product.right.slot, *terms, *plan.copies(columns), deep, results[column], near)
    left = plan.add("stage", product.left.slot, *held, *terms, *plan.copies(rows), results[row], deep, near)
    if target.vector_bytes:
        _copy(plan, product.right.step(inner) == 1, (right[deep], right[near], right[results[column]]), unit)
        _copy(plan, product.left.step(inner) == 1, (left[deep], left[near], left[results[row]]), unit, is_left=True)
    return plan


def _copy(plan: Plan, is_along: bool, loops: tuple[str, str, str], unit: Unit, *, is_left: bool = False) -> None:
    """How an operand is packed: as it lies where that is how the unit wants it, else turned or woven in registers."""
    deep, near, side = loops
    plan.cut("unroll", near, unit.group)
    if is_left and is_along:
        plan.cut("vectorize", deep, unit.k // unit.group)
        return
    if is_left or is_along:
        plan.cut("unroll", deep, unit.k // unit.group)
    plan.cut("vectorize", side, unit.m if is_left else unit.n)

"""The schedule of a sum of products for a target with a matrix unit.

Blocks of results are computed by the unit, two by two, and put in memory; rows of lanes read them from there, do what
is left to do and store them, with masks at the ends. Both operands are packed as the unit wants them (lower/tile.py): a
panel of the columns for all tiles of rows, the rows for all panels of a block. Nothing here asks what a kernel computes
beyond that one sum. docs/decisions/0020-tiles.md. Tests: tests/compiler/optimize/test_tiles.py.
"""

from __future__ import annotations

from kernmill.ir import Target, Unit, UOp

from .actions import Action
from .packing import blocks
from .products import Operand, Product, find_product, is_window

__all__ = ["find_unit", "tile_actions"]

_FEW_ROWS = 48  # a product of up to so many waits for memory
_LARGE = 4  # times L2: a matrix that no cache holds
_SIDE = 2  # blocks of results side by side, and one below the other


def find_unit(ast: UOp, target: Target) -> tuple[Product, Unit] | None:
    """The product that a kernel is and what of the target does it; None without either, or where little is gained."""
    product = find_product(ast) if target.tiles else None
    if product is None or not product.rows:
        return None
    kinds = (*(operand.dtype for operand in product.operands), product.dtype)
    unit = next((unit for unit in target.tiles if (unit.a, unit.b, unit.c) == kinds), None)
    extents = {product.rows: unit.m, product.columns: unit.n, product.inner: unit.k} if unit else {}
    if unit is None or any(2 * product.sizes[name] < extent for name, extent in extents.items()):
        return None  # most of a block would be empty
    for name, operand in zip((product.rows, product.columns), product.operands, strict=True):
        if is_window(product.sizes, operand.steps, name, product.inner):
            return None  # its copy would not lie as the unit wants it
    right, size = product.operands[1], product.sizes[product.inner] * product.sizes[product.columns]
    is_large = size * unit.b.size_bytes > _LARGE * target.l2_bytes and right.steps.get(product.columns) == 1
    if is_large and product.sizes[product.rows] <= _FEW_ROWS:
        return None  # it is read in the order in which it lies, not by panels
    return product, unit


def tile_actions(ast: UOp, target: Target) -> list[Action] | None:
    """The schedule without its threads; None where the kernel is something else."""
    found = find_unit(ast, target)
    return None if found is None else _tiled(*found, target)


def _tiled(product: Product, unit: Unit, target: Target) -> list[Action]:
    sizes, rows, columns, inner = product.sizes, product.rows, product.columns, product.inner
    left, right = product.operands
    high, wide = -(-sizes[rows] // unit.m), -(-sizes[columns] // unit.n)
    cuts = [(rows, unit.m), (columns, unit.n), (inner, unit.k), (f"{inner}.s", unit.group)]
    actions = [Action("split", (name, str(amount))) for name, amount in cuts]
    copied = [name for name, count in ((rows, high), (columns, wide)) if count > 1]
    actions += [Action("unroll", (name, str(_SIDE))) for name in copied]
    panels, tiles = -(-wide // _SIDE), -(-high // _SIDE)
    actions.append(Action("tile", (f"{rows}.s", f"{columns}.s")))
    lanes = min(unit.n, target.lanes(unit.c))
    size_bytes = sizes[rows] * sizes[inner] * unit.a.size_bytes
    across, down = blocks(sizes[columns], panels, sizes[rows], size_bytes, target)
    split, outer, inside = product.in_blocks((f"{columns}.ss", panels, across), (f"{rows}.ss", tiles, down))
    block = [f"{rows}.s", *([f"{columns}.s"] if lanes < unit.n else [])]
    wide_rows = [Action("vectorize", (f"{columns}.s", str(lanes)))] if lanes > 1 else []
    actions += [*split, *wide_rows, Action("order", (*outer, *inside, *block))]
    terms = [inner] if sizes[inner] > unit.k else []
    held = [name for name in inside if name.partition(".")[0] == rows]
    deep, near = f"{inner}.s", f"{inner}.s.s"
    for operand, name, around, order in (
        (right, columns, terms, (deep, f"{columns}.s'", near)),
        (left, rows, [*held, *terms], (f"{rows}.s'", deep, near)),
    ):
        beside = [f"{name}.u"] if name in copied else []
        actions.append(Action("stage", (str(operand.slot), *around, *beside, *order)))
    if target.vector_bytes:
        actions += _copying(right, product, columns, unit, "'") + _copying(left, product, rows, unit, "''")
    return actions


def _copying(operand: Operand, product: Product, name: str, unit: Unit, mark: str) -> list[Action]:
    """How an operand is packed: as it lies where that is how the unit wants it, else turned or woven in registers."""
    deep, near = f"{product.inner}.s{mark}", f"{product.inner}.s.s{mark}"
    actions = [Action("unroll", (near, str(unit.group)))]
    is_left, is_along = name == product.rows, operand.steps.get(product.inner) == 1
    if is_left and is_along:
        return [*actions, Action("vectorize", (deep, str(unit.k // unit.group)))]
    if is_left or is_along:
        actions.append(Action("unroll", (deep, str(unit.k // unit.group))))
    return [*actions, Action("vectorize", (f"{name}.s'{mark}", str(unit.m if is_left else unit.n)))]

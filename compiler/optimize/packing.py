"""Panels: what many register tiles read again is copied side by side first, in pieces that the caches hold.

Nothing here asks what a kernel computes. One operand changes with the lanes and not with the rows of a tile: a panel of
it, the lanes of one tile and all terms of the sum, is read by every tile of rows. Another changes with the rows and not
with the lanes, and is read again by every panel. Each is packed where enough tiles read it again, and reading it as it
lies is dear: lanes far apart, a pitch that maps rows to the same places of a cache, or values that are converted each
time they are read. Figures: docs/decisions/0003-heuristic.md and 0016-panels.md. Tests:
tests/compiler/optimize/test_packing.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernmill.ir import Ops, Target

from .actions import Action, fits
from .look import Access, Group, Shape, is_gated
from .products import is_window

__all__ = ["SMALL_REDUCE", "Tile", "blocks", "pack"]

SMALL_REDUCE = 8  # a reduce loop up to this size is copied out whole
_BLOCK_ROWS = 16  # of a transposed operand that are packed together, and turned in registers
_VALUE_BYTES = 4  # of a packed value, as it is computed with
_WIDE = 512  # lanes of a block of panels, for each of which the rows are packed anew
_HIGH = 256  # rows of a block, for each of which panels are packed anew
_MOST_BLOCKS = 16
_MOST_ROWS = 16  # times L2: a block of packed rows; it is read in the order in which it lies
_LEAST_TILES = 4  # that read a packed row again, from which on packing pays


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: `width` lanes over the loop `lanes`, copies of output loops, and the actions that make it."""

    lanes: str
    width: int
    copies: dict[str, int]
    actions: list[Action]

    @property
    def columns(self) -> int:
        """Lanes of all vectors side by side."""
        return self.width * self.copies.get(self.lanes, 1)

    def copied(self, loop: str) -> list[Action]:
        """The actions that copy a reduce loop out."""
        return [a for a in self.actions if a.verb in ("unroll", "group") and a.args[0] == loop]

    def together(self, loop: str) -> int:
        """Iterations of a reduce loop that are copied out together."""
        count = 1
        for action in self.copied(loop):
            count *= int(action.args[1])
        return count

    def tiles(self, shape: Shape, loop: str) -> int:
        """How many tiles there are along an output loop."""
        size = self.columns if loop == self.lanes else self.copies.get(loop, 1)
        return -(-shape.sizes[loop] // size)


@dataclass(frozen=True, slots=True)
class _Product:
    """What is packed: the operand of the lanes and that of the rows (None: read as it lies), over the loops."""

    rows: str
    terms: str
    panel: Access | None
    left: Access | None


def pack(shape: Shape, main: Group, tile: Tile, target: Target) -> list[Action]:
    """The order of the loops, and what is staged; empty where operands are best read as they lie."""
    if tile.lanes not in shape.outputs or len(main.loops) != 1:
        return []
    (terms,) = main.loops
    others = [name for name in shape.outputs if name != tile.lanes and tile.copies.get(name, 1) > 1]
    if len(others) != 1 or shape.sizes[terms] <= 2 * SMALL_REDUCE:
        return []
    (rows,) = others
    panel = [a for a in main.loads if tile.lanes in a.steps and rows not in a.steps]
    if len(panel) != 1 or is_gated(panel[0]):
        return []
    is_dear = _is_dear_panel(shape, panel[0], tile, target)
    left = _dear_rows(shape, main, tile, rows, terms)
    enough = tile.tiles(shape, rows) >= (8 if _is_side_by_side(panel[0], tile) else 4)
    if is_dear and not enough and left is None:
        outer = [name for name in shape.outputs if name not in (rows, tile.lanes)]
        return [Action("order", (*outer, tile.lanes, rows))]
    if not is_dear and left is None:
        return []
    return _blocked(shape, tile, _Product(rows, terms, panel[0] if is_dear and enough else None, left), target)


def _is_side_by_side(panel: Access, tile: Tile) -> bool:
    return panel.step(tile.lanes) == 1 and not _is_converted(panel)


def _is_converted(a: Access) -> bool:
    return a.node.dtype.is_float and a.size_bytes < _VALUE_BYTES


def _is_dear_panel(shape: Shape, panel: Access, tile: Tile, target: Target) -> bool:
    """All but a small matrix, whose rows stay in L1 while tiles go over it."""
    is_small = panel.memory_bytes <= target.l1_bytes and shape.sizes[tile.lanes] % tile.width == 0
    return not (_is_side_by_side(panel, tile) and is_small)


def _dear_rows(shape: Shape, main: Group, tile: Tile, rows: str, terms: str) -> Access | None:
    """The operand of the rows, if reading it as it lies is dear and enough panels read it again."""
    found = [a for a in main.loads if rows in a.steps and tile.lanes not in a.steps]
    if len(found) != 1 or is_gated(found[0]) or found[0].memory.op is not Ops.PARAM:
        return None
    (left,) = found
    if left.step(rows) is None or left.step(terms) is None or is_window(shape.sizes, left.steps, rows, terms):
        return None
    is_dear = left.step(terms) != 1 or _is_converted(left)
    enough = min(tile.tiles(shape, rows), tile.tiles(shape, tile.lanes)) >= _LEAST_TILES
    return left if is_dear and enough else None


def _blocked(shape: Shape, tile: Tile, product: _Product, target: Target) -> list[Action]:
    """Blocks of panels, and of rows if they are packed; terms in blocks if a panel of all would fill the cache."""
    rows, terms = product.rows, product.terms
    count = _terms(shape, tile, product, target)
    actions, inside = list[Action](), {tile.lanes: tile.lanes, rows: rows}
    outer = [name for name in shape.outputs if name not in (rows, tile.lanes)]
    wide, high = 1, 1
    if product.left is not None:
        size_bytes = shape.sizes[rows] * (count or shape.sizes[terms]) * _VALUE_BYTES
        panels = tile.tiles(shape, tile.lanes)
        wide, high = blocks(shape.sizes[tile.lanes], panels, shape.sizes[rows], size_bytes, target)
    for name, number in ((tile.lanes, wide), (rows, high)):
        each = -(-tile.tiles(shape, name) // number)
        if 1 < each < tile.tiles(shape, name):
            actions.append(Action("split", (name, str(each))))
            outer.append(name)
            inside[name] = f"{name}.s"
    inner = [inside[tile.lanes], inside[rows]]
    if count:
        actions.append(Action("accumulate", (terms, str(count // tile.together(terms)))))
        inner.insert(0 if tile.lanes in outer or rows in outer else 1, terms)  # threads share the outermost loop
    actions.append(Action("order", (*outer, *inner)))
    walked = f"{terms}.s" if count else terms
    return [*actions, *_panel(tile, product, walked), *_rows(tile, product, walked, inside[rows], target)]


def _terms(shape: Shape, tile: Tile, product: _Product, target: Target) -> int:
    """Terms of a block of the sum; 0 for all of them at once."""
    size, count = shape.sizes[product.terms], target.l2_bytes // 2 // (tile.columns * _VALUE_BYTES)
    if size <= count:
        return 0
    together = tile.together(product.terms)
    blocks = -(-size // count)
    each = -(-size // blocks // together)
    if shape.ast is None or each < 2 or not fits(shape.ast, Action("accumulate", (product.terms, str(each)))):
        return 0
    return each * together


def blocks(columns: int, panels: int, rows: int, size_bytes: int, target: Target) -> tuple[int, int]:
    """Blocks of panels and of rows. What is packed for one of them is packed anew for another: few, shared by threads.

    `columns` are in `panels` panels; all `rows` packed take `size_bytes`. They may outgrow L2, since every panel reads
    them from one end to the other.
    """
    count = -(-size_bytes // (_MOST_ROWS * target.l2_bytes))
    if panels >= 2 * _LEAST_TILES:
        return max(2, min(_MOST_BLOCKS, columns // _WIDE)), count
    return 1, max(count, 2, min(_MOST_BLOCKS, rows // _HIGH))


def _panel(tile: Tile, product: _Product, walked: str) -> list[Action]:
    """The operand of the lanes staged; where it is transposed, in blocks that turn in registers."""
    if product.panel is None:
        return []
    inner = [f"{product.terms}.{a.verb[0]}" for a in tile.copied(product.terms)]
    if tile.copies.get(tile.lanes, 1) > 1:
        inner.append(f"{tile.lanes}.u")
    slot = product.panel.slot
    is_turned = product.panel.step(tile.lanes) != 1 and product.panel.step(product.terms) == 1
    turned = _BLOCK_ROWS // tile.together(product.terms) if is_turned else 1
    stage = Action("stage", (slot, walked, *inner, f"{tile.lanes}.v"))
    return [stage, Action("unroll", (f"{walked}'", str(turned)))] if turned > 1 else [stage]


def _rows(tile: Tile, product: _Product, walked: str, rows: str, target: Target) -> list[Action]:
    """The operand of the rows staged by vectors: in the order of use, or as it lies if its terms are neighbours."""
    if product.left is None:
        return []
    inner = [f"{product.terms}.{a.verb[0]}" for a in tile.copied(product.terms)]
    copied, mark = f"{product.rows}.u", "'" if product.panel is None else "''"
    slot, count = product.left.slot, tile.copies[product.rows]
    if product.left.step(product.terms) == 1:
        lanes = Action("vectorize", (f"{walked}{mark}", str(tile.width)))
        return [Action("stage", (slot, rows, copied, walked, *inner)), lanes]
    stage = Action("stage", (slot, rows, walked, *inner, copied))
    width = 1 << (count - 1).bit_length()
    if product.left.step(product.rows) != 1 or (width != count and not target.has_masks):
        return [stage]
    return [stage, Action("vectorize", (f"{copied}{mark}", str(width)))]

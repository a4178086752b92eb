"""Panels: what many register tiles read again is copied side by side first, in pieces that the caches hold.

Nothing here asks what a kernel computes. An operand is packed when it changes with the lanes and not with the rows of a
tile, many tiles of rows use it again, and it does not lie side by side in a cache anyway. Figures:
docs/decisions/0003-heuristic.md. Tests: tests/compiler/optimize/test_packing.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernmill.ir import Ops, Target

from .actions import Action, fits
from .look import Access, Group, Shape, is_gated

__all__ = ["SMALL_REDUCE", "Tile", "pack"]

SMALL_REDUCE = 8  # a reduce loop up to this size is copied out whole
_BLOCK_ROWS = 16  # of a transposed operand that are packed together, and turned in registers


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


def pack(shape: Shape, main: Group, tile: Tile, target: Target) -> list[Action]:
    """The order of the loops, and what is staged; empty where operands are best read as they lie."""
    if tile.lanes not in shape.outputs or len(main.loops) != 1 or target.has_grid:
        return []
    (reduce_loop,) = main.loops
    others = [name for name in shape.outputs if name != tile.lanes and tile.copies.get(name, 1) > 1]
    if len(others) != 1 or shape.sizes[reduce_loop] <= 2 * SMALL_REDUCE:
        return []
    (rows,) = others
    panel = [a for a in main.loads if tile.lanes in a.steps and rows not in a.steps and a.node.op is Ops.LOAD]
    if len(panel) != 1 or is_gated(panel[0]):
        return []
    (operand,) = panel
    is_contiguous = operand.step(tile.lanes) == 1
    whole = int(operand.node.src[0].src[0].arg[1]) * operand.size_bytes
    if is_contiguous and whole < target.l2_bytes // 2 and shape.sizes[tile.lanes] % tile.width == 0:
        return []
    outer = [name for name in shape.outputs if name not in (rows, tile.lanes)]
    order = Action("order", (*outer, tile.lanes, rows))
    if shape.sizes[rows] // tile.copies[rows] < (8 if is_contiguous else 4):
        return [order]
    if shape.sizes[reduce_loop] * tile.columns * operand.size_bytes <= target.l2_bytes // 2:
        return [order, *_panel(operand, tile, reduce_loop, reduce_loop)]
    terms = target.l2_bytes // 4 // (tile.columns * operand.size_bytes)
    for copied in tile.copied(reduce_loop):
        terms //= int(copied.args[1])
    if shape.ast is None or terms < 2 or not fits(shape.ast, Action("accumulate", (reduce_loop, str(terms)))):
        return [order]
    return [
        Action("accumulate", (reduce_loop, str(terms))),
        Action("order", (*outer, tile.lanes, reduce_loop, rows)),
        *_panel(operand, tile, reduce_loop, f"{reduce_loop}.s"),
    ]


def _panel(operand: Access, tile: Tile, reduce_loop: str, terms: str) -> list[Action]:
    """The operand staged over the loop `terms`; where it is transposed, in blocks that turn in registers."""
    copies = tile.copied(reduce_loop)
    inner = [f"{reduce_loop}.{a.verb[0]}" for a in copies]
    if tile.copies.get(tile.lanes, 1) > 1:
        inner.append(f"{tile.lanes}.u")
    slot = str(operand.node.src[0].src[0].arg[0])
    turned = _BLOCK_ROWS if operand.step(tile.lanes) != 1 and operand.step(reduce_loop) == 1 else 1
    for copied in copies:
        turned //= int(copied.args[1])
    stage = Action("stage", (slot, terms, *inner, f"{tile.lanes}.v"))
    return [stage, Action("unroll", (f"{terms}'", str(turned)))] if turned > 1 else [stage]

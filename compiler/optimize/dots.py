"""The schedule of a sum of products of bytes, for a target with a dot product instruction.

Four terms of the sum become one instruction (lower/dot.py), which asks for them side by side: the reduce loop is copied
out by four, and innermost where an operand is packed. Nothing here asks what a kernel computes beyond that one sum.
Figures: docs/decisions/0010-dot-and-tiles.md. Tests: tests/compiler/optimize/test_dots.py.
"""

from __future__ import annotations

from kernmill.ir import Target, UOp, dtypes

from ..lower.dot import BYTES, GROUP
from .actions import Action
from .packing import blocks
from .products import Product, find_product, is_window

__all__ = ["dot_actions"]

_BLOCK = (4, 6)  # vectors and rows of a register tile; with 16 registers:
_SMALL_BLOCK = (2, 4)
_PACKED_ROWS = 4  # tiles that read a panel again, from which on packing pays


def dot_actions(ast: UOp, target: Target) -> list[Action] | None:
    """The schedule without its threads; None where the kernel is something else."""
    product = find_product(ast) if target.dots else None
    if product is None or product.dtype is not dtypes.int32 or any(o.dtype not in BYTES for o in product.operands):
        return None
    inner = product.inner
    if product.sizes[inner] < 2 * GROUP:
        return None
    if product.rows:
        return _tiled(product, target)
    if all(operand.steps.get(inner) == 1 for operand in product.operands):
        return [Action("unroll", (inner, str(GROUP))), Action("vectorize", (inner, str(target.vector_bytes // 4)))]
    return None


def _tiled(product: Product, target: Target) -> list[Action]:
    sizes, rows, columns, inner = product.sizes, product.rows, product.columns, product.inner
    left, right = product.operands
    lanes = target.vector_bytes // 4
    while lanes > 4 and lanes >= 2 * sizes[columns]:
        lanes //= 2
    vectors, most = _BLOCK if target.vector_registers >= 32 else _SMALL_BLOCK
    vectors = min(vectors, -(-sizes[columns] // lanes))
    tile = min(range(1, most + 1), key=lambda n: (-(-sizes[rows] // n) * (n + 1), -n))
    actions = [Action("vectorize", (columns, str(lanes)))]
    actions += [Action("unroll", (name, str(n))) for name, n in ((columns, vectors), (rows, tile)) if n > 1]
    actions.append(Action("unroll", (inner, str(GROUP))))
    if sizes[rows] < _PACKED_ROWS * tile:
        return actions
    packs_rows = left.dtype is right.dtype and left.steps.get(inner) == 1 and sizes[inner] % (GROUP * lanes) == 0
    packs_rows = packs_rows and not is_window(sizes, left.steps, rows, inner)
    panels, tiles = -(-sizes[columns] // (lanes * vectors)), -(-sizes[rows] // tile)
    across, down = blocks(sizes[columns], panels, sizes[rows], sizes[rows] * sizes[inner], target)
    parts = (f"{columns}.s", panels, across if packs_rows else 1), (f"{rows}.s", tiles, down if packs_rows else 1)
    cuts, outer, inside = product.in_blocks(*parts)
    actions += cuts
    actions.append(Action("order", (*outer, *inside)))
    held = [name for name in inside if name.partition(".")[0] == rows]
    own = [inner] if sizes[inner] > GROUP else []
    wide = [f"{columns}.u"] if vectors > 1 else []
    panel = (*own, *wide, f"{columns}.v", f"{inner}.u")
    actions.append(Action("stage", (str(right.slot), *panel)))
    if packs_rows:  # adding 128 in the inner loop would cost a fifth of the time
        actions.append(
            Action("stage", (str(left.slot), *held, *([f"{rows}.u"] if tile > 1 else []), *own, f"{inner}.u"))
        )
        actions.append(Action("vectorize", (f"{inner}''", str(lanes))))
    return actions

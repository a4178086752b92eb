"""The schedule of a sum of products of bytes, for a target with a dot product instruction.

Four terms of the sum become one instruction (lower/find_dots.py), which asks for them side by side: the reduce loop is
copied out by four, and innermost where an operand is packed. Nothing here asks what a kernel computes beyond that one
sum. Figures: docs/decisions/0010-dot-and-tiles.md and 0044-bytes-of-the-other-sign.md. Tests:
tests/compiler/optimize/test_dots.py.
"""

from __future__ import annotations

from kernmill.ir import Target, dtypes

from ..lower.find_dots import BYTES, GROUP
from .analysis import Facts, Product, divisors, even_part
from .schedule import Schedule

__all__ = ["dot_schedule"]

_BLOCK = (4, 6)  # vectors and rows of a register tile; with 16 registers:
_SMALL_BLOCK = (2, 4)
_LEAST_BLOCKS = 4  # of panels, which threads share
_PACKED_ROWS = 4  # tiles that read a panel again, from which on packing pays


def dot_schedule(facts: Facts) -> Schedule | None:
    """The schedule without its threads; None where the kernel is something else."""
    product = facts.product if facts.target.dots else None
    if product is None or product.dtype is not dtypes.int32:
        return None
    inner, operands = product.inner, (product.left, product.right)
    are_bytes = all(a.is_plain and a.dtype in BYTES and a.node.dtype is a.dtype for a in operands)
    if not are_bytes or facts.sizes[inner] < 2 * GROUP:
        return None
    schedule = Schedule(facts.ast)
    if product.rows:
        _tiled(schedule, facts, product)
        return schedule
    if any(a.step(inner) != 1 for a in operands):
        return None
    schedule.cut("unroll", inner, GROUP)
    schedule.cut("vectorize", inner, facts.target.vector_bytes // 4)
    return schedule


def _tiled(schedule: Schedule, facts: Facts, product: Product) -> None:
    sizes, rows, columns, inner = facts.sizes, product.rows, product.columns, product.inner
    left, right = product.left, product.right
    lanes = facts.target.vector_bytes // 4
    while lanes > 4 and lanes >= 2 * sizes[columns]:
        lanes //= 2
    vectors, most = _BLOCK if facts.target.vector_registers >= 32 else _SMALL_BLOCK
    vectors = min(vectors, -(-sizes[columns] // lanes))
    tile = even_part(sizes[rows], most)
    wide, panel, is_packed = lanes * vectors, columns, sizes[rows] >= _PACKED_ROWS * tile
    if is_packed and left.dtype is right.dtype:  # moved while copied: in the inner loop it would cost a fifth
        alone = schedule.add("bias", right.slot, rows)[inner]
        schedule.cut("unroll", alone, GROUP)
        schedule.cut("vectorize", alone, lanes)
    side: list[str] = []
    if is_packed and sizes[columns] > wide:
        (panel,) = schedule.cut("split", columns, wide)
        side = schedule.cut("split", columns, _beside(-(-sizes[columns] // wide), sizes[inner] * wide, facts.target))
    schedule.cut("unroll", inner, GROUP)
    if is_packed:
        copies = schedule.add("stage", right.slot, *side, inner, panel, *schedule.copies(inner))
        is_row = right.step(columns) == 1 and wide & (wide - 1) == 0
        schedule.cut("vectorize", copies[panel], wide if is_row else lanes)  # whole registers, woven into each other
    schedule.cut("vectorize", panel, lanes)
    schedule.cut("unroll", panel, vectors)
    schedule.cut("unroll", rows, tile)
    if is_packed:
        outer = [name for name in schedule.loops if name not in (columns, rows, *side)]
        schedule.order((*outer, columns, rows, *side))
        schedule.tries("prefetchw")


def _beside(count: int, size_bytes: int, target: Target) -> int:
    """Of so many panels those that a tile of rows goes by one after the other: rows come from far less often. What L1
    holds stays there by itself."""
    most = 1 if size_bytes <= target.l1_bytes else min(target.l2_bytes // 2 // size_bytes, count // _LEAST_BLOCKS)
    return max(divisors(count, max(1, most)))

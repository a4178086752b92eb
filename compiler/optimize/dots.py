"""The schedule of a product of narrow values, for targets with a dot product instruction.

Adjacent reduction elements, four bytes or two bfloat16, become one instruction (lower/find_dots.py), which needs them
contiguous. The reduce loop is unrolled by that count, and is innermost where an operand is packed. Nothing here depends
on the meaning of a kernel beyond that one reduction. Why: docs/topics/dot-products.md. Tests:
tests/compiler/optimize/test_dots.py.
"""

from __future__ import annotations

from math import gcd

from kernmill.ir import DOT_SUMS, Target

from ..lower.find_dots import is_multiplied, terms_of_a_dot
from .analysis import Facts, Product, divisors, even_part
from .packing import BLOCK_ROWS, blocks, in_blocks
from .schedule import Schedule
from .tiles import BLOCKS, LEAST_READERS, MANY_ACCUMULATORS, MOST_ROWS, MOST_VECTORS, SHARES, SMALL_BLOCKS, SMALL_ROWS

__all__ = ["dot_schedule"]


def dot_schedule(facts: Facts) -> Schedule | None:
    """The schedule without its threads; None where the kernel is something else."""
    product = facts.product if facts.target.dots else None
    if product is None or not is_multiplied(product.left.dtype, product.right.dtype, facts.target):
        return None
    operands = (product.left, product.right)
    is_plain = all(a.is_affine and a.node.dtype is a.dtype for a in operands)
    is_sum = DOT_SUMS[product.left.dtype] is product.dtype
    if not is_plain or not is_sum or facts.sizes[product.inner] < 2 * terms_of_a_dot(product.left.dtype):
        return None
    return _of_floats(facts, product) if product.dtype.is_float else _of_bytes(facts, product)


def _of_bytes(facts: Facts, product: Product) -> Schedule | None:
    schedule = Schedule(facts.ast)
    if product.rows:
        tile = _register_tile(facts, product)
        _tiled(schedule, facts, product, tile, is_packed=_is_read_again(facts, product, tile))
    elif product.left.step(product.inner) == product.right.step(product.inner) == 1:
        _along(schedule, facts, product)
    else:
        return None
    return schedule


def _of_floats(facts: Facts, product: Product) -> Schedule | None:
    """Return the schedule for pairs of bfloat16; None if conversion to float32 is faster, or elements do not form
    pairs."""
    schedule, inner, count = Schedule(facts.ast), product.inner, facts.sizes.get(product.rows, 1)
    if facts.sizes[inner] % terms_of_a_dot(product.left.dtype):
        return None  # outside the reduction a factor may be nan
    is_left_along, is_right_along = (a.step(inner) == 1 for a in (product.left, product.right))
    is_streamed = facts.target.is_streamed(product.right.memory_bytes)
    tile = _register_tile(facts, product) if is_left_along else (MOST_VECTORS, SMALL_ROWS)
    is_in_order = is_streamed and is_left_along and not is_right_along
    is_packed = _is_read_again(facts, product, tile) or (is_in_order and count > MOST_ROWS)
    if product.rows and (is_packed or (is_left_along and not is_right_along and not is_streamed)):
        _tiled(schedule, facts, product, tile, is_packed=is_packed)
    elif is_left_along and is_right_along and not (is_streamed and count <= SMALL_ROWS):
        return _along_in_tiles(schedule, facts, product)
    else:
        return None
    return schedule


def _along_in_tiles(schedule: Schedule, facts: Facts, product: Product) -> Schedule | None:
    """Schedule few rows by a transposed matrix, if their reduction elements fill enough vectors."""
    inner, rows, columns = product.inner, product.rows, product.columns or facts.outputs[-1]
    vector = facts.target.vector_bytes // product.left.size_bytes
    if facts.sizes[inner] % vector or facts.sizes[inner] < SMALL_ROWS * vector:
        return None
    _along(schedule, facts, product)
    for name in filter(None, (columns, rows)):
        schedule.cut("unroll", name, even_part(facts.sizes[name], SMALL_ROWS))
    schedule.order((*(name for name in schedule.loops if name not in (columns, rows)), columns, rows))
    if facts.target.is_streamed(product.right.memory_bytes):
        schedule.try_add("prefetch", 2 * facts.target.machine.prefetch_bytes)
    return schedule


def _along(schedule: Schedule, facts: Facts, product: Product) -> None:
    """Make the reduction elements, which are adjacent in both operands, the lanes."""
    schedule.cut("unroll", product.inner, terms_of_a_dot(product.left.dtype))
    schedule.cut("vectorize", product.inner, facts.target.vector_bytes // product.dtype.size_bytes)


def _register_tile(facts: Facts, product: Product) -> tuple[int, int]:
    """Vectors and rows of a register tile, as far as there are."""
    vectors, most = BLOCKS[0] if facts.target.accumulators >= MANY_ACCUMULATORS else SMALL_BLOCKS[0]
    return vectors, even_part(facts.sizes.get(product.rows, 1), most)


def _is_read_again(facts: Facts, product: Product, tile: tuple[int, int]) -> bool:
    """True if enough tiles of rows reuse a packed panel."""
    return facts.sizes.get(product.rows, 1) >= LEAST_READERS * tile[1]


def _tiled(schedule: Schedule, facts: Facts, product: Product, block: tuple[int, int], *, is_packed: bool) -> None:
    sizes, rows, columns, inner = facts.sizes, product.rows, product.columns, product.inner
    left, right, terms = product.left, product.right, terms_of_a_dot(product.left.dtype)
    lanes = facts.target.vector_bytes // product.dtype.size_bytes
    while lanes > 4 and lanes >= 2 * sizes[columns]:
        lanes //= 2
    vectors, tile = min(block[0], -(-sizes[columns] // lanes)), block[1]
    wide, panel, side = lanes * vectors, columns, list[str]()
    panels = -(-sizes[columns] // wide)
    is_direct = (left.dtype, right.dtype) in facts.target.dots
    if is_packed and left.dtype is right.dtype and left.dtype.is_int and not is_direct:
        alone = schedule.add("bias", right.slot, rows)[inner]  # while packing: inside it would cost a fifth
        schedule.cut("unroll", alone, terms)
        schedule.cut("vectorize", alone, lanes)
    if is_packed and panels > 1:
        (panel,) = schedule.cut("split", columns, wide)
        together = _panels_in_l2(panels, sizes[inner] * wide * right.size_bytes, facts.target)
        side, panels = schedule.cut("split", columns, together), panels // together
    schedule.cut("unroll", inner, terms)
    if is_packed:
        _pack_panel(schedule, product, [*side, inner, panel], sizes[inner], (wide, lanes))
    schedule.cut("vectorize", panel, lanes)
    schedule.cut("unroll", panel, vectors)
    schedule.cut("unroll", rows, tile)
    if is_packed and left.dtype.is_float and left.step(inner) != 1:
        _pack_rows(schedule, facts, product, (side, panels))
    elif is_packed:
        outer = [name for name in schedule.loops if name not in (columns, rows, *side)]
        schedule.order((*outer, columns, rows, *side))
    if is_packed:
        schedule.try_add("prefetchw")


def _pack_panel(schedule: Schedule, product: Product, loops: list[str], size: int, width: tuple[int, int]) -> None:
    """Pack columns over these loops; the last two are the reduction and the columns.

    Adjacent columns are copied as whole registers and interleaved. Adjacent reduction elements are transposed as
    words. `width`: columns of the panel, and lanes of the accumulator.
    """
    right, terms, (wide, lanes) = product.right, terms_of_a_dot(product.left.dtype), width
    inner, panel = loops[-2:]
    (word,) = schedule.unrolled_loops(inner)
    copies = schedule.add("stage", right.slot, *loops, word)
    is_row = right.step(product.columns) == 1 and wide & (wide - 1) == 0
    if right.dtype.is_float:
        schedule.try_add("unroll", copies[word], terms)
        if right.step(inner) == 1:
            schedule.cut("unroll", copies[inner], gcd(size // terms, BLOCK_ROWS))
    schedule.cut("vectorize", copies[panel], min(wide, lanes * terms) if is_row else lanes)


def _pack_rows(schedule: Schedule, facts: Facts, product: Product, around: tuple[list[str], int]) -> None:
    """Pack rows whose reduction elements are not adjacent, tile by tile, for all panels of a block. `around`: the
    loop over panels of a block, and its number of iterations."""
    rows, columns, inner, left = product.rows, product.columns, product.inner, product.left
    (side, panels), tiles = around, -(-facts.sizes[rows] // SMALL_ROWS)
    wide, high = blocks(facts.sizes[columns], panels, facts.sizes[rows], left.memory_bytes, facts.target)
    outer, inside = in_blocks(schedule, facts, {columns: (panels, wide), rows: (tiles, high)})
    schedule.order((*outer, *inside[columns], *inside[rows], *side))
    (word,), (own,) = schedule.unrolled_loops(inner), schedule.unrolled_loops(rows)
    copies = schedule.add("stage", left.slot, *inside[rows], inner, own, word)
    if left.step(rows) == 1:
        schedule.try_add("unroll", copies[word], terms_of_a_dot(left.dtype))
        schedule.cut("vectorize", copies[own], SMALL_ROWS)


def _panels_in_l2(count: int, size_bytes: int, target: Target) -> int:
    """Return how many panels a tile of rows is multiplied with consecutively. Each row that comes
    from L3 then serves more panels; if a panel fits L1, it is one panel."""
    most = 1 if size_bytes <= target.l1_bytes else min(target.l2_bytes // 2 // size_bytes, count // SHARES)
    return max(divisors(count, max(1, most)))

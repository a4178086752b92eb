"""Packed panels: an operand that many register tiles reuse is first copied contiguously, in blocks that fit the caches.

Nothing here depends on what a kernel computes. One operand depends on the lanes but not on the rows of a tile. Its
panel, the lanes of one tile and the whole reduction, is read by every tile of rows. The other depends on the rows but
not on the lanes, and is read again by every panel. Each is packed if enough tiles reuse it and reading it in place is
slow. Slow are lanes with a large stride, a row stride that causes cache-set conflicts, and values that are converted at
each read. Why: docs/topics/matrix-products.md. Tests: tests/compiler/optimize/test_packing.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernmill.ir import ALIAS_BYTES, LINE_BYTES, WORD_BYTES, Ops, Target

from .actions import Action, fits
from .analysis import Access, Facts, ReductionGroup
from .schedule import Schedule
from .staging import share_axis
from .tiles import BLOCKS, LEAST_READERS

__all__ = ["BLOCK_ROWS", "SHORT", "SMALL_REDUCE", "blocks", "in_blocks", "pack", "prefetch_by_tiles"]

SMALL_REDUCE = 8  # a reduce loop up to this size is unrolled completely
BLOCK_ROWS = 16  # of a transposed operand that are packed together, and transposed in registers
_WIDE = 512  # lanes of a block of panels; the rows are packed again for each
_MOST_ROWS = 16  # times L2: a block of packed rows; it is read sequentially
# times L2: data that exceed the caches; a panel takes this fraction of L2, to leave room for the next one
_BEYOND_CACHES = 8
# reduction elements that hide a prefetch; elements of a reduction that is long compared to its stores
SHORT, _LONG = 64, 512
_ROWS_AHEAD = 16  # prefetch distance in rows of the matrix: their computation takes as long as an L3 access


def pack(schedule: Schedule, facts: Facts, main: ReductionGroup, lanes: str, width: int) -> None:
    """Set the loop order of a register tile with these lanes, and stage operands; nothing if operands are best read
    in place."""
    others = [name for name in facts.outputs if name != lanes and schedule.unrolled_size(name) > 1]
    if lanes not in facts.outputs or not main.terms or not others:
        return
    rows = next((n for n in others if not any({n, lanes} <= a.steps.keys() for a in main.loads)), others[0])
    parts, size = [name for name in others if name != rows], facts.sizes[main.terms]
    panels, lefts = main.operand(lanes, rows), main.operand(rows, lanes)
    is_written = facts.stores[0].memory_bytes > facts.target.l2_bytes  # rather than read: line by line
    is_short = size <= 2 * SMALL_REDUCE or (is_written and size < SHORT)
    if len(panels) != 1 or panels[0].is_gated or ((is_short or parts) and panels[0].step(lanes) == 1):
        return
    if any(panels != main.operand(name, rows) for name in parts):
        return
    packing = _Packing(schedule, facts, lanes, rows, main.terms, width, panels[0], parts)
    if not is_short and len(lefts) == 1 and not parts and packing.is_slow_by_rows(lefts[0]):
        packing.left = lefts[0]
    is_small = panels[0].memory_bytes <= facts.target.l1_bytes and facts.sizes[lanes] % width == 0  # stays in L1
    if not is_small and not is_short and packing.reads_from_l2():
        return
    is_slow = not (is_small and packing.is_contiguous)
    packs_panel = is_slow and packing.tiles(rows) >= packing.least_readers()
    if is_slow and not packs_panel and packing.left is None:
        schedule.order([*(name for name in facts.outputs if name not in (rows, lanes)), lanes, rows])
    elif is_slow or packing.left is not None:
        packing.in_blocks(packs_panel=packs_panel)


@dataclass(slots=True)
class _Packing:
    """A register tile over two output loops and a reduction: the operand of its lanes, and the operand of its rows
    if it is slow to read in place."""

    schedule: Schedule
    facts: Facts
    lanes: str
    rows: str
    terms: str
    width: int  # of a vector
    panel: Access
    parts: list[str]  # of the columns, when they are heads: a loop of the tile over some lanes of each
    left: Access | None = None

    def tiles(self, loop: str) -> int:
        """How many tiles there are along an output loop."""
        return -(-self.facts.sizes[loop] // self.schedule.unrolled_size(loop))

    @property
    def columns(self) -> int:
        """The values of a panel per reduction element."""
        return prod(map(self.schedule.unrolled_size, (*self.parts, self.lanes)))

    @property
    def reduce_loops(self) -> list[str]:
        """The loops over reduction elements, unless all are unrolled."""
        return [self.terms] if self.schedule.unrolled_size(self.terms) < self.facts.sizes[self.terms] else []

    @property
    def is_contiguous(self) -> bool:
        """True if a vector of the panel is one load."""
        return self.panel.step(self.lanes) == 1 and not _is_converted(self.panel)

    def least_readers(self) -> float:
        """Return the number of tiles of rows from which on packing a panel pays. Each tile gathers lanes at a large
        stride, and a copy of adjacent reduction elements is transposed in registers. Rows of a large matrix are in as
        many pages, not in L1."""
        if self.panel.step(self.lanes) != 1:
            return 1 if self.panel.step(self.terms) == 1 else 2
        size_bytes = self.facts.sizes[self.lanes] * self.facts.sizes[self.terms] * self.panel.size_bytes
        most = LEAST_READERS if _is_converted(self.panel) else 2 * LEAST_READERS
        return min(most, max(2.0, 2 / (size_bytes / self.facts.target.l2_bytes)))

    def is_slow_by_rows(self, left: Access) -> bool:
        """True if reading the operand of the rows in place is slow, and enough panels reuse it."""
        pitch, step = left.step(self.rows), left.step(self.terms)
        if left.is_gated or left.memory.op is not Ops.PARAM or pitch is None or step is None:
            return False
        has_conflicts = self.is_for_all(left) and pitch * left.size_bytes % ALIAS_BYTES == 0
        is_slow = step != 1 or _is_converted(left) or has_conflicts
        is_read_again = min(self.tiles(name) for name in (self.rows, self.lanes)) >= LEAST_READERS
        return is_slow and is_read_again and not share_axis(left.node, (self.rows, self.terms))

    def is_for_all(self, left: Access) -> bool:
        """True if other output loops reuse the same rows: packed once, they serve all products of a batch."""
        others = [name for name in self.facts.outputs if name not in (self.lanes, self.rows)]
        batch = [name for name in others if self.facts.sizes[name] > 1]
        return bool(batch) and not any(name in left.steps for name in batch)

    def reads_from_l2(self) -> bool:
        """True if tiles read the operand of the lanes from L2 as fast as packed panels. The operand fits half of L2,
        has whole cache lines, several to a row of a tile, and the rows of a tile are enough work for each line. It is
        then prefetched some rows ahead, the larger operand is read once, and slow rows are packed tile by tile."""
        facts, lanes, rows, left = self.facts, self.lanes, self.rows, self.left
        pitch = (self.panel.step(self.terms) or 0) * self.panel.size_bytes if self.is_contiguous else 0
        is_in_l2 = 2 * WORD_BYTES * facts.sizes[lanes] * facts.sizes[self.terms] <= facts.target.l2_bytes
        if self.columns * self.panel.size_bytes <= LINE_BYTES:
            return False  # each line would be on a page of its own
        if not pitch or pitch % LINE_BYTES or not is_in_l2 or self.schedule.unrolled_size(rows) < BLOCKS[0][1]:
            return False
        if left is not None and self.is_for_all(left):
            return False
        inner = (rows, lanes) if left is not None or facts.sizes[rows] > facts.sizes[lanes] else (lanes, rows)
        self.schedule.order((*(name for name in facts.outputs if name not in inner), *inner))
        self.schedule.try_add("prefetch", _ROWS_AHEAD * pitch, lanes)
        self.stage_rows(self.reduce_loops, [])
        return True

    def in_blocks(self, *, packs_panel: bool) -> None:
        """Block the panels, and the rows if they are packed; block the reduction if a whole panel would fill the
        cache."""
        schedule, facts, lanes, rows = self.schedule, self.facts, self.lanes, self.rows
        count, panels = self.terms_of_a_block(), self.tiles(lanes)
        wide, high, deep = 1, 1, count or facts.sizes[self.terms]
        if self.left is not None and not self.is_for_all(self.left):
            size_bytes = facts.sizes[rows] * deep * WORD_BYTES
            wide, high = blocks(facts.sizes[lanes], panels, facts.sizes[rows], size_bytes, facts.target)
        outer, inside = in_blocks(schedule, facts, {lanes: (panels, wide), rows: (self.tiles(rows), high)})
        inner, reduce_loops = [*inside[lanes], *inside[rows]], self.reduce_loops
        if count:
            each = count // schedule.unrolled_size(self.terms)
            reduce_loops = [schedule.add("accumulate", self.terms, each)[self.terms]]
            # the outermost loop is parallelized over threads
            inner.insert(0 if lanes in outer or rows in outer else 1, self.terms)
        schedule.order((*outer, *inner))
        if packs_panel:
            self.stage_panel(reduce_loops, deep)
        self.stage_rows(reduce_loops, inside[rows])

    def terms_of_a_block(self) -> int:
        """Return the reduction elements of a block; 0 for all of them at once."""
        size, together = self.facts.sizes[self.terms], self.schedule.unrolled_size(self.terms)
        count = self.facts.target.l2_bytes // 2 // (self.columns * WORD_BYTES)
        if size <= count:
            return 0
        each = -(-size // -(-size // count) // together)
        is_possible = each > 1 and fits(self.facts.ast, Action("accumulate", (self.terms, str(each))))
        return each * together if is_possible else 0

    def stage_panel(self, reduce_loops: Sequence[str], deep: int) -> None:
        """Stage the operand of the lanes; if it is transposed, in blocks that are transposed in registers. From
        memory that exceeds the caches, the next panel is prefetched while this one is used
        (lower/insert_prefetches.py)."""
        schedule, panel, l2_bytes = self.schedule, self.panel, self.facts.target.l2_bytes
        columns = self.columns * panel.size_bytes
        is_far = self.is_contiguous and panel.memory_bytes > _BEYOND_CACHES * l2_bytes
        copied = [inner for name in (self.terms, *self.parts, self.lanes) for inner in schedule.unrolled_loops(name)]
        copies = schedule.add("stage", panel.slot, *reduce_loops, *copied)
        for loop in reduce_loops:
            if panel.step(self.lanes) != 1 and panel.step(self.terms) == 1:
                schedule.cut("unroll", copies[loop], max(1, BLOCK_ROWS // schedule.unrolled_size(self.terms)))
            elif is_far and deep * columns <= l2_bytes // _BEYOND_CACHES:
                schedule.add("prefetch", columns, copies[loop])

    def stage_rows(self, reduce_loops: Sequence[str], rows: Sequence[str]) -> None:
        """Stage the operand of the rows by vectors: in the order of use, or in memory order if its reduction
        elements are adjacent."""
        schedule, left = self.schedule, self.left
        inner, copied = schedule.unrolled_loops(self.terms), schedule.unrolled_loops(self.rows)
        if left is not None and left.step(self.terms) == 1:
            copies = schedule.add("stage", left.slot, *rows, *copied, *reduce_loops, *inner)
            for loop in reduce_loops:
                schedule.cut("vectorize", copies[loop], self.width)
        elif left is not None:
            copies = schedule.add("stage", left.slot, *rows, *reduce_loops, *inner, *copied)
            count = schedule.unrolled_size(self.rows)
            width = 1 << (count - 1).bit_length()
            if left.step(self.rows) == 1 and (width == count or self.facts.target.has_masks):
                schedule.cut("vectorize", copies[copied[0]], width)


def _is_converted(a: Access) -> bool:
    return a.node.dtype.is_float and a.size_bytes < WORD_BYTES


def prefetch_by_tiles(schedule: Schedule, facts: Facts, main: ReductionGroup, lanes: str) -> None:
    """Prefetch during a register tile: the cache lines it will store to, and the rows of the next tile. Rows are
    prefetched if they are read once, in place, from memory that exceeds the caches (lower/insert_prefetches.py)."""
    rows = next((name for name in reversed(schedule.loops) if name != lanes and schedule.unrolled_size(name) > 1), None)
    (store, *others), terms = facts.stores, main.terms
    if rows is None or not terms or len(facts.groups) != 1 or facts.sizes[terms] < SHORT:
        return
    is_alone = not others and store.step(lanes) == 1 and facts.sizes[terms] <= _LONG
    if is_alone and 4 * store.memory_bytes > facts.target.l2_bytes:
        schedule.try_add("prefetchw")
    is_once = lanes not in schedule.loops and schedule.loops[-1] == rows
    for left in main.operand(rows, lanes) if is_once else ():
        pitch, is_beyond_caches = left.step(rows) or 0, left.memory_bytes > _BEYOND_CACHES * facts.target.l2_bytes
        if is_beyond_caches and not left.is_gated and left.step(terms) == 1 and pitch > 0:
            schedule.try_add("prefetch", schedule.unrolled_size(rows) * pitch * left.size_bytes, terms)


def in_blocks(
    schedule: Schedule, facts: Facts, reduce_loops: Mapping[str, tuple[int, int]]
) -> tuple[list[str], dict[str, list[str]]]:
    """Iterate over panels and tiles of rows in blocks: return the output loops around a block, and each loop's inner
    part.

    `reduce_loops`: for each loop the number of panels or tiles, and the number of blocks of them.
    """
    outer, inside = [name for name in facts.outputs if name not in reduce_loops], dict[str, list[str]]()
    for name, (count, number) in reduce_loops.items():
        each = -(-count // number)
        is_cut = 1 < each < count
        inside[name] = schedule.cut("split", name, each) if is_cut else [name]
        outer += [name] if is_cut else []
    return outer, inside


def blocks(columns: int, panels: int, rows: int, size_bytes: int, target: Target) -> tuple[int, int]:
    """Return the number of blocks of panels and of rows. Data packed for one block are packed again for the next: few
    blocks, shared by threads.

    `columns` are in `panels` panels; all `rows` packed take `size_bytes`. They may exceed L2, since every panel reads
    them sequentially.
    """
    count = -(-size_bytes // (_MOST_ROWS * target.l2_bytes))
    if panels >= 2 * LEAST_READERS:
        return max(2, columns // _WIDE), count
    return 1, max(count, 2, rows // _WIDE)

"""Panels: what many register tiles read again is copied side by side first, in pieces that the caches hold.

Nothing here asks what a kernel computes. One operand changes with the lanes and not with the rows of a tile: a panel of
it, the lanes of one tile and all terms of the sum, is read by every tile of rows. Another changes with the rows and not
with the lanes, and is read again by every panel. Each is packed where enough tiles read it again, and reading it as it
lies is dear: lanes far apart, a pitch that maps rows to the same places of a cache, or values that are converted each
time they are read. Why: docs/topics/matrix-products.md. Tests:
tests/compiler/optimize/test_packing.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernmill.ir import LINE_BYTES, Ops, Target

from .actions import Action, fits
from .analysis import Access, Facts, Group
from .schedule import Schedule
from .staging import SAME_PLACE, walked_together

__all__ = ["SMALL_REDUCE", "ask_by_tiles", "blocks", "in_blocks", "pack"]

SMALL_REDUCE = 8  # a reduce loop up to this size is copied out whole
_BLOCK_ROWS = 16  # of a transposed operand that are packed together, and turned in registers
_VALUE_BYTES = 4  # of a packed value, as it is computed with
_WIDE = 512  # lanes of a block of panels, for each of which the rows are packed anew
_HIGH = 256  # rows of a block, for each of which panels are packed anew
_MOST_BLOCKS = 16
_MOST_ROWS = 16  # times L2: a block of packed rows; it is read in the order in which it lies
_FAR = 8  # times L2: what no cache holds; a panel that leaves room for the next takes such a part of it
_SHORT, _LONG = 64, 512  # terms of a sum that hides what is asked for; of one that is long beside its stores
_ENOUGH_ROWS = 6  # of a tile: two multiplications a cycle then want a third of a line from L2
_ROWS_AHEAD = 16  # of the matrix, that are asked for: what they are worked on for is how long L3 takes
_LEAST_TILES = 4  # that read a packed row again, from which on packing pays


def pack(schedule: Schedule, facts: Facts, main: Group, lanes: str, width: int) -> None:
    """The order of the loops of a register tile with these lanes, and what is staged; nothing where operands are best
    read as they lie."""
    others = [name for name in facts.outputs if name != lanes and schedule.together(name) > 1]
    if lanes not in facts.outputs or not main.terms or not others:
        return
    rows = next((n for n in others if not any({n, lanes} <= a.steps.keys() for a in main.loads)), others[0])
    parts, size = [name for name in others if name != rows], facts.sizes[main.terms]
    panels, lefts = main.operand(lanes, rows), main.operand(rows, lanes)
    is_written = facts.stores[0].memory_bytes > facts.target.l2_bytes  # rather than read: line by line
    is_short = size <= 2 * SMALL_REDUCE or (is_written and size < _SHORT)
    if len(panels) != 1 or panels[0].is_gated or ((is_short or parts) and panels[0].step(lanes) == 1):
        return
    if any(panels != main.operand(name, rows) for name in parts):
        return
    packing = _Packing(schedule, facts, lanes, rows, main.terms, width, panels[0], parts)
    if not is_short and len(lefts) == 1 and not parts and packing.is_dear_by_rows(lefts[0]):
        packing.left = lefts[0]
    is_small = panels[0].memory_bytes <= facts.target.l1_bytes and facts.sizes[lanes] % width == 0  # stays in L1
    if not is_small and not is_short and packing.reads_from_l2():
        return
    is_dear = not (is_small and packing.is_side_by_side)
    packs_panel = is_dear and packing.tiles(rows) >= packing.least_readers()
    if is_dear and not packs_panel and packing.left is None:
        schedule.order([*(name for name in facts.outputs if name not in (rows, lanes)), lanes, rows])
    elif is_dear or packing.left is not None:
        packing.in_blocks(packs_panel=packs_panel)


@dataclass(slots=True)
class _Packing:
    """A register tile over two output loops and a sum: the operand of its lanes, and that of its rows if it is dear to
    read as it lies."""

    schedule: Schedule
    facts: Facts
    lanes: str
    rows: str
    terms: str
    width: int  # of a vector
    panel: Access
    parts: list[str]  # of the columns, as the heads are: a loop of the tile over some lanes of each
    left: Access | None = None

    def tiles(self, loop: str) -> int:
        """How many tiles there are along an output loop."""
        return -(-self.facts.sizes[loop] // self.schedule.together(loop))

    @property
    def columns(self) -> int:
        """Values of a panel for each term."""
        return prod(map(self.schedule.together, (*self.parts, self.lanes)))

    @property
    def walked(self) -> list[str]:
        """The loop over terms, unless all of it is copied out."""
        return [self.terms] if self.schedule.together(self.terms) < self.facts.sizes[self.terms] else []

    @property
    def is_side_by_side(self) -> bool:
        """Whether a vector of the panel is one load."""
        return self.panel.step(self.lanes) == 1 and not _is_converted(self.panel)

    def least_readers(self) -> float:
        """Tiles of rows from which on copying a panel pays. Lanes far apart are gathered by each of them, and a copy of
        terms that are neighbours is turned in registers; rows of a large matrix lie in as many pages, and not near."""
        if self.panel.step(self.lanes) != 1:
            return 1 if self.panel.step(self.terms) == 1 else 2
        size_bytes = self.facts.sizes[self.lanes] * self.facts.sizes[self.terms] * self.panel.size_bytes
        most = _LEAST_TILES if _is_converted(self.panel) else 2 * _LEAST_TILES
        return min(most, max(2.0, 2 / (size_bytes / self.facts.target.l2_bytes)))

    def is_dear_by_rows(self, left: Access) -> bool:
        """Whether reading the operand of the rows as it lies is dear, and enough panels read it again."""
        pitch, step = left.step(self.rows), left.step(self.terms)
        if left.is_gated or left.memory.op is not Ops.PARAM or pitch is None or step is None:
            return False
        is_far = self.is_for_all(left) and pitch * left.size_bytes % SAME_PLACE == 0
        is_dear = step != 1 or _is_converted(left) or is_far
        is_read_again = min(self.tiles(name) for name in (self.rows, self.lanes)) >= _LEAST_TILES
        return is_dear and is_read_again and not walked_together(left.node, (self.rows, self.terms))

    def is_for_all(self, left: Access) -> bool:
        """Whether other output loops use the same rows again: packed once, they serve all products of a batch."""
        others = [name for name in self.facts.outputs if name not in (self.lanes, self.rows)]
        batch = [name for name in others if self.facts.sizes[name] > 1]
        return bool(batch) and not any(name in left.steps for name in batch)

    def reads_from_l2(self) -> bool:
        """Whether tiles read the operand of the lanes from L2 as fast as copied panels: half of L2 holds it, it lies in
        whole lines, and the rows of a tile are enough work for each line. Then it is asked for some rows ahead, the
        larger operand is read once, and dear rows are packed tile by tile."""
        facts, lanes, rows, left = self.facts, self.lanes, self.rows, self.left
        pitch = (self.panel.step(self.terms) or 0) * self.panel.size_bytes if self.is_side_by_side else 0
        is_in_l2 = 2 * _VALUE_BYTES * facts.sizes[lanes] * facts.sizes[self.terms] <= facts.target.l2_bytes
        if not pitch or pitch % LINE_BYTES or not is_in_l2 or self.schedule.together(rows) < _ENOUGH_ROWS:
            return False
        if left is not None and self.is_for_all(left):
            return False
        inner = (rows, lanes) if left is not None or facts.sizes[rows] > facts.sizes[lanes] else (lanes, rows)
        self.schedule.order((*(name for name in facts.outputs if name not in inner), *inner))
        self.schedule.tries("prefetch", _ROWS_AHEAD * pitch, lanes)
        self.stage_rows(self.walked, [])
        return True

    def in_blocks(self, *, packs_panel: bool) -> None:
        """Blocks of panels, and of rows if they are packed; terms in blocks if a panel of all would fill the cache."""
        schedule, facts, lanes, rows = self.schedule, self.facts, self.lanes, self.rows
        count, panels = self.terms_of_a_block(), self.tiles(lanes)
        wide, high, deep = 1, 1, count or facts.sizes[self.terms]
        if self.left is not None and not self.is_for_all(self.left):
            size_bytes = facts.sizes[rows] * deep * _VALUE_BYTES
            wide, high = blocks(facts.sizes[lanes], panels, facts.sizes[rows], size_bytes, facts.target)
        outer, inside = in_blocks(schedule, facts, {lanes: (panels, wide), rows: (self.tiles(rows), high)})
        inner, walked = [*inside[lanes], *inside[rows]], self.walked
        if count:
            walked = [schedule.add("accumulate", self.terms, count // schedule.together(self.terms))[self.terms]]
            inner.insert(0 if lanes in outer or rows in outer else 1, self.terms)  # threads share the outermost loop
        schedule.order((*outer, *inner))
        if packs_panel:
            self.stage_panel(walked, deep)
        self.stage_rows(walked, inside[rows])

    def terms_of_a_block(self) -> int:
        """Terms of a block of the sum; 0 for all of them at once."""
        size, together = self.facts.sizes[self.terms], self.schedule.together(self.terms)
        count = self.facts.target.l2_bytes // 2 // (self.columns * _VALUE_BYTES)
        if size <= count:
            return 0
        each = -(-size // -(-size // count) // together)
        is_possible = each > 1 and fits(self.facts.ast, Action("accumulate", (self.terms, str(each))))
        return each * together if is_possible else 0

    def stage_panel(self, walked: Sequence[str], deep: int) -> None:
        """The operand of the lanes; where it is transposed, in blocks that turn in registers. In memory that no cache
        holds what lies behind a panel is asked for while that panel is used (lower/insert_prefetches.py)."""
        schedule, panel, l2_bytes = self.schedule, self.panel, self.facts.target.l2_bytes
        columns = self.columns * panel.size_bytes
        copied = [inner for name in (self.terms, *self.parts, self.lanes) for inner in schedule.copies(name)]
        copies = schedule.add("stage", panel.slot, *walked, *copied)
        for loop in walked:
            if panel.step(self.lanes) != 1 and panel.step(self.terms) == 1:
                schedule.cut("unroll", copies[loop], max(1, _BLOCK_ROWS // schedule.together(self.terms)))
            elif self.is_side_by_side and panel.memory_bytes > _FAR * l2_bytes and deep * columns <= l2_bytes // _FAR:
                schedule.add("prefetch", columns, copies[loop])

    def stage_rows(self, walked: Sequence[str], rows: Sequence[str]) -> None:
        """The operand of the rows by vectors: in the order of use, or as it lies if its terms are neighbours."""
        schedule, left = self.schedule, self.left
        inner, copied = schedule.copies(self.terms), schedule.copies(self.rows)
        if left is not None and left.step(self.terms) == 1:
            copies = schedule.add("stage", left.slot, *rows, *copied, *walked, *inner)
            for loop in walked:
                schedule.cut("vectorize", copies[loop], self.width)
        elif left is not None:
            copies = schedule.add("stage", left.slot, *rows, *walked, *inner, *copied)
            count = schedule.together(self.rows)
            width = 1 << (count - 1).bit_length()
            if left.step(self.rows) == 1 and (width == count or self.facts.target.has_masks):
                schedule.cut("vectorize", copies[copied[0]], width)


def _is_converted(a: Access) -> bool:
    return a.node.dtype.is_float and a.size_bytes < _VALUE_BYTES


def ask_by_tiles(schedule: Schedule, facts: Facts, main: Group, lanes: str) -> None:
    """While a register tile is computed: the lines that it will store to, and the rows of the next one if they are read
    once, as they lie, from memory that no cache holds (lower/insert_prefetches.py)."""
    rows = next((name for name in reversed(schedule.loops) if name != lanes and schedule.together(name) > 1), None)
    (store, *others), terms = facts.stores, main.terms
    if rows is None or not terms or len(facts.groups) != 1 or facts.sizes[terms] < _SHORT:
        return
    is_alone = not others and store.step(lanes) == 1 and facts.sizes[terms] <= _LONG
    if is_alone and 4 * store.memory_bytes > facts.target.l2_bytes:
        schedule.tries("prefetchw")
    is_once = lanes not in schedule.loops and schedule.loops[-1] == rows
    for left in main.operand(rows, lanes) if is_once else ():
        pitch, is_far = left.step(rows) or 0, left.memory_bytes > _FAR * facts.target.l2_bytes
        if is_far and not left.is_gated and left.step(terms) == 1 and pitch > 0:
            schedule.tries("prefetch", schedule.together(rows) * pitch * left.size_bytes, terms)


def in_blocks(
    schedule: Schedule, facts: Facts, walked: Mapping[str, tuple[int, int]]
) -> tuple[list[str], dict[str, list[str]]]:
    """Panels and tiles of rows are walked in blocks: the output loops around a block, and what each loop is inside.

    `walked`: of each loop how many panels or tiles it has, and how many blocks of them there are.
    """
    outer, inside = [name for name in facts.outputs if name not in walked], dict[str, list[str]]()
    for name, (count, number) in walked.items():
        each = -(-count // number)
        is_cut = 1 < each < count
        inside[name] = schedule.cut("split", name, each) if is_cut else [name]
        outer += [name] if is_cut else []
    return outer, inside


def blocks(columns: int, panels: int, rows: int, size_bytes: int, target: Target) -> tuple[int, int]:
    """Blocks of panels and of rows. What is packed for one of them is packed anew for another: few, shared by threads.

    `columns` are in `panels` panels; all `rows` packed take `size_bytes`. They may outgrow L2, since every panel reads
    them from one end to the other.
    """
    count = -(-size_bytes // (_MOST_ROWS * target.l2_bytes))
    if panels >= 2 * _LEAST_TILES:
        return max(2, min(_MOST_BLOCKS, columns // _WIDE)), count
    return 1, max(count, 2, min(_MOST_BLOCKS, rows // _HIGH))

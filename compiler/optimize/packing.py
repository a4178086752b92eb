"""Panels: what many register tiles read again is copied side by side first, in pieces that the caches hold.

Nothing here asks what a kernel computes. One operand changes with the lanes and not with the rows of a tile: a panel of
it, the lanes of one tile and all terms of the sum, is read by every tile of rows. Another changes with the rows and not
with the lanes, and is read again by every panel. Each is packed where enough tiles read it again, and reading it as it
lies is dear: lanes far apart, a pitch that maps rows to the same places of a cache, or values that are converted each
time they are read. Figures: docs/decisions/0003-heuristic.md and 0016-panels.md. Tests:
tests/compiler/optimize/test_packing.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernmill.ir import Ops, Target

from .actions import Action, fits
from .analysis import Access, Facts, Group
from .plan import Plan
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
_LINE = 64  # bytes that come together
_ENOUGH_ROWS = 6  # of a tile: two multiplications a cycle then want a third of a line from L2
_ROWS_AHEAD = 16  # of the matrix, that are asked for: what they are worked on for is how long L3 takes
_LEAST_TILES = 4  # that read a packed row again, from which on packing pays


@dataclass(frozen=True, slots=True)
class _Packing:
    """What is packed: the operand of the lanes and that of the rows (None: read as it lies), over the loops."""

    lanes: str
    rows: str
    terms: str
    width: int  # of a vector
    panel: Access | None
    left: Access | None


def pack(plan: Plan, facts: Facts, main: Group, lanes: str, width: int) -> None:
    """The order of the loops of a register tile with these lanes, and what is staged; nothing where operands are best
    read as they lie."""
    others = [name for name in facts.outputs if name != lanes and plan.together(name) > 1]
    if lanes not in facts.outputs or not main.terms or len(others) != 1:
        return
    (rows,), terms = others, main.terms
    panel = main.operand(lanes, rows)
    store, l2_bytes = facts.stores[0], facts.target.l2_bytes
    is_written = store.memory_bytes > l2_bytes  # rather than read: line by line, as the loops stand
    is_short = facts.sizes[terms] <= 2 * SMALL_REDUCE or (is_written and facts.sizes[terms] < _SHORT)
    if len(panel) != 1 or panel[0].is_gated or (is_short and panel[0].step(lanes) == 1):
        return
    is_small = panel[0].memory_bytes <= facts.target.l1_bytes and facts.sizes[lanes] % width == 0  # stays in L1
    is_dear = not (_is_side_by_side(panel[0], lanes) and is_small)
    left = None if is_short else _dear_rows(plan, facts, main, lanes, rows)
    packing = _Packing(lanes, rows, terms, width, panel[0], left)
    if not is_small and not is_short and _as_it_lies(plan, facts, packing):
        return
    size_bytes = facts.sizes[lanes] * facts.sizes[terms] * panel[0].size_bytes
    enough = _tiles(plan, facts, rows) >= _readers(panel[0], lanes, terms, size_bytes / l2_bytes)
    if is_dear and not enough and left is None:
        plan.order([*(name for name in facts.outputs if name not in (rows, lanes)), lanes, rows])
    elif is_dear or left is not None:
        _blocked(plan, facts, packing if is_dear and enough else replace(packing, panel=None))


def ask_by_tiles(plan: Plan, facts: Facts, main: Group, lanes: str) -> None:
    """While a register tile is computed: the lines that it will store to, and the rows of the next one if they are read
    once, as they lie, from memory that no cache holds (lower/insert_prefetches.py)."""
    rows = next((name for name in reversed(plan.loops) if name != lanes and plan.together(name) > 1), None)
    (store, *others), terms = facts.stores, main.terms
    if rows is None or not terms or len(facts.groups) != 1 or facts.sizes[terms] < _SHORT:
        return
    far = _FAR * facts.target.l2_bytes
    if (
        not others
        and store.step(lanes) == 1
        and 4 * store.memory_bytes > facts.target.l2_bytes
        and facts.sizes[terms] <= _LONG
    ):
        plan.tries("prefetchw")
    for left in (a for a in main.operand(rows, lanes) if not a.is_gated):
        is_once = lanes not in plan.loops and plan.loops[-1] == rows and left.memory_bytes > far
        if is_once and left.step(terms) == 1 and (left.step(rows) or 0) > 0:
            plan.tries("prefetch", plan.together(rows) * (left.step(rows) or 0) * left.size_bytes, terms)


def _tiles(plan: Plan, facts: Facts, loop: str) -> int:
    """How many tiles there are along an output loop."""
    return -(-facts.sizes[loop] // plan.together(loop))


def _readers(panel: Access, lanes: str, terms: str, of_l2: float) -> float:
    """Tiles of rows from which on copying a panel of a matrix, which takes such a part of L2, pays. Lanes far apart are
    gathered by each of them, and a copy of terms that are neighbours is turned in registers; rows of a large matrix lie
    in as many pages, and not near."""
    if panel.step(lanes) != 1:
        return 1 if panel.step(terms) == 1 else 2
    return min(_LEAST_TILES if _is_converted(panel) else 2 * _LEAST_TILES, max(2.0, 2 / of_l2))


def _is_side_by_side(panel: Access, lanes: str) -> bool:
    return panel.step(lanes) == 1 and not _is_converted(panel)


def _is_converted(a: Access) -> bool:
    return a.node.dtype.is_float and a.size_bytes < _VALUE_BYTES


def _dear_rows(plan: Plan, facts: Facts, main: Group, lanes: str, rows: str) -> Access | None:
    """The operand of the rows, if reading it as it lies is dear and enough panels read it again."""
    found = main.operand(rows, lanes)
    if len(found) != 1 or found[0].is_gated or found[0].memory.op is not Ops.PARAM:
        return None
    (left,), terms = found, main.terms
    if left.step(rows) is None or left.step(terms) is None or walked_together(left.node, (rows, terms)):
        return None
    is_dear = left.step(terms) != 1 or _is_converted(left)
    is_dear |= _is_for_all(facts, left, lanes, rows) and (left.step(rows) or 0) * left.size_bytes % SAME_PLACE == 0
    return left if is_dear and min(_tiles(plan, facts, name) for name in (rows, lanes)) >= _LEAST_TILES else None


def _is_for_all(facts: Facts, left: Access, lanes: str, rows: str) -> bool:
    """Whether other output loops use the same rows again: packed once, they serve all products of a batch."""
    batch = [name for name in facts.outputs if name not in (lanes, rows) and facts.sizes[name] > 1]
    return bool(batch) and not any(name in left.steps for name in batch)


def _as_it_lies(plan: Plan, facts: Facts, packing: _Packing) -> bool:
    """Whether tiles read the operand of the lanes from L2 as fast as copied panels: half of L2 holds it, it lies in
    whole lines, and the rows of a tile are enough work for each line. Then it is asked for some rows ahead, the larger
    operand is read once, and dear rows are packed tile by tile."""
    panel, left, lanes, rows, terms = packing.panel, packing.left, packing.lanes, packing.rows, packing.terms
    pitch = 0 if panel is None or not _is_side_by_side(panel, lanes) else (panel.step(terms) or 0) * panel.size_bytes
    is_in_l2 = 2 * _VALUE_BYTES * facts.sizes[lanes] * facts.sizes[terms] <= facts.target.l2_bytes
    is_for_all = left is not None and _is_for_all(facts, left, lanes, rows)
    if not pitch or pitch % _LINE or not is_in_l2 or plan.together(rows) < _ENOUGH_ROWS or is_for_all:
        return False
    inner = (rows, lanes) if left is not None or facts.sizes[rows] > facts.sizes[lanes] else (lanes, rows)
    plan.order((*(name for name in facts.outputs if name not in inner), *inner))
    plan.tries("prefetch", _ROWS_AHEAD * pitch, lanes)
    _stage_rows(plan, packing, [terms] if plan.together(terms) < facts.sizes[terms] else [], [], facts.target)
    return True


def _blocked(plan: Plan, facts: Facts, packing: _Packing) -> None:
    """Blocks of panels, and of rows if they are packed; terms in blocks if a panel of all would fill the cache."""
    lanes, rows, terms = packing.lanes, packing.rows, packing.terms
    count, panels = _terms(plan, facts, packing), _tiles(plan, facts, lanes)
    wide, high, deep = 1, 1, count or facts.sizes[terms]
    if packing.left is not None and not _is_for_all(facts, packing.left, lanes, rows):
        size_bytes = facts.sizes[rows] * deep * _VALUE_BYTES
        wide, high = blocks(facts.sizes[lanes], panels, facts.sizes[rows], size_bytes, facts.target)
    outer, inside = in_blocks(plan, facts, {lanes: (panels, wide), rows: (_tiles(plan, facts, rows), high)})
    inner, walked = [*inside[lanes], *inside[rows]], [terms] if plan.together(terms) < facts.sizes[terms] else []
    if count:
        walked = [plan.add("accumulate", terms, count // plan.together(terms))[terms]]
        inner.insert(0 if lanes in outer or rows in outer else 1, terms)  # threads share the outermost loop
    plan.order((*outer, *inner))
    _stage_panel(plan, packing, walked, deep, facts.target)
    _stage_rows(plan, packing, walked, inside[rows], facts.target)


def _terms(plan: Plan, facts: Facts, packing: _Packing) -> int:
    """Terms of a block of the sum; 0 for all of them at once."""
    size, together = facts.sizes[packing.terms], plan.together(packing.terms)
    count = facts.target.l2_bytes // 2 // (plan.together(packing.lanes) * _VALUE_BYTES)
    if size <= count:
        return 0
    each = -(-size // -(-size // count) // together)
    is_possible = each > 1 and fits(facts.ast, Action("accumulate", (packing.terms, str(each))))
    return each * together if is_possible else 0


def in_blocks(
    plan: Plan, facts: Facts, walked: Mapping[str, tuple[int, int]]
) -> tuple[list[str], dict[str, list[str]]]:
    """Panels and tiles of rows are walked in blocks: the output loops around a block, and what each loop is inside.

    `walked`: of each loop how many panels or tiles it has, and how many blocks of them there are.
    """
    outer, inside = [name for name in facts.outputs if name not in walked], dict[str, list[str]]()
    for name, (count, number) in walked.items():
        each = -(-count // number)
        is_cut = 1 < each < count
        inside[name] = plan.cut("split", name, each) if is_cut else [name]
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


def _stage_panel(plan: Plan, packing: _Packing, walked: Sequence[str], deep: int, target: Target) -> None:
    """The operand of the lanes; where it is transposed, in blocks that turn in registers.

    In memory that no cache holds what lies behind a panel is asked for while that panel is used
    (lower/insert_prefetches.py).
    """
    panel, lanes, terms = packing.panel, packing.lanes, packing.terms
    if panel is None:
        return
    copies = plan.add("stage", panel.slot, *walked, *plan.copies(terms), *plan.copies(lanes))
    for loop in walked:
        if panel.step(lanes) != 1 and panel.step(terms) == 1:
            plan.cut("unroll", copies[loop], max(1, _BLOCK_ROWS // plan.together(terms)))
        elif _is_side_by_side(panel, lanes) and panel.memory_bytes > _FAR * target.l2_bytes:
            columns = plan.together(lanes) * panel.size_bytes
            if deep * columns <= target.l2_bytes // _FAR:
                plan.add("prefetch", columns, copies[loop])


def _stage_rows(plan: Plan, packing: _Packing, walked: Sequence[str], rows: Sequence[str], target: Target) -> None:
    """The operand of the rows by vectors: in the order of use, or as it lies if its terms are neighbours."""
    left, inner, copied = packing.left, plan.copies(packing.terms), plan.copies(packing.rows)
    if left is None:
        return
    if left.step(packing.terms) == 1:
        copies = plan.add("stage", left.slot, *rows, *copied, *walked, *inner)
        for loop in walked:
            plan.cut("vectorize", copies[loop], packing.width)
        return
    copies = plan.add("stage", left.slot, *rows, *walked, *inner, *copied)
    count = plan.together(packing.rows)
    width = 1 << (count - 1).bit_length()
    if left.step(packing.rows) == 1 and (width == count or target.has_masks):
        plan.cut("vectorize", copies[copied[0]], width)

"""Schedules of products with one operand read through a sliding window.

They are recognized by facts about loops. Reduce loops move along the same line of one operand as output loops do
(staging.py): that operand is copied once into rows without gates, and then read as scalars. The other operand is
invariant in those output loops, and has its own loop that becomes the lanes: it is packed into a panel. The rest is the
register tile of a matrix product, whose rows share elements with their neighbours. A reduction too long for a panel
accumulates in the output, block by block; then rows with contiguous reduction elements need no window. A reduce loop
next to the window with contiguous elements is innermost. If the lanes are inside the operand of the window, a square of
outputs shares the overlap of their windows (`overlapping`). If the window slides along the lanes, rows do
(`along_windows`). Why: docs/topics/convolutions.md, docs/topics/reductions.md. Tests:
tests/compiler/optimize/test_windows.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product

from kernmill.ir import Ops

from ..kernel.facts import names_of
from .analysis import Access, Facts, ReductionGroup, analyze, divisors, exceeds_caches
from .packing import BLOCK_ROWS
from .schedule import Schedule
from .staging import share_axis
from .tiles import LEAST_READERS, MOST_VECTORS, SHARES, tile_of

__all__ = ["along_windows", "overlapping", "window_schedule"]

_GATED = 8.0  # instructions of a load with its own mask
_TRANSPOSED_STORE = 4.0  # cycles to store a vector of a tile across the lanes
_SCATTER = 20.0  # and if too few rows are adjacent
_AROUND = 20.0  # cycles of a tile before and after its reduction
_ISSUED = 3.6  # instructions a cycle
_LONGEST = 7  # longest window that is unrolled
_MOST_ROWS = 16  # of one copy
_OUTPUTS = 72  # outputs per lane in one block
_SMALL = 16  # taps of windows for which copies do not always pay
_LEFT_OVER = 0.9  # fraction of its speed for a tile with remaining elements: they are masked


@dataclass(frozen=True, slots=True)
class _Tile:
    """The vectors, positions along the line and rows of a register tile, and its unrolled taps (1: none)."""

    vectors: int
    along: int
    rows: int
    taps: int

    @property
    def sums(self) -> int:
        """Accumulators."""
        return self.vectors * self.along * self.rows


@dataclass(frozen=True, slots=True)
class _Window:
    """The loops of such a reduction by their role, and what follows from their sizes."""

    facts: Facts
    moving: Access  # the operand of the window
    panel: Access
    lanes: str
    lines: list[tuple[str, str]]  # output loops, and the reduce loop that moves on the same line
    terms: list[str]  # all reduce loops
    is_copied: bool = True  # False: rows with adjacent reduction elements, read in place

    @property
    def along(self) -> str:
        """The output loop that steps least."""
        return self.lines[0][0]

    @property
    def taps(self) -> str:
        """The reduce loop on its line."""
        return self.lines[0][1]

    @property
    def down(self) -> str | None:
        """The output loop of the next line."""
        return self.lines[1][0] if len(self.lines) > 1 else None

    @property
    def channels(self) -> str | None:
        """The reduce loop next to the window with contiguous elements, as with channels last."""
        others = [name for name in self.terms if name not in chain(*self.lines) and self.is_copied]
        sizes, lanes = self.facts.sizes, self.facts.lanes
        return next((n for n in others if self.moving.step(n) == 1 and 2 * sizes[n] >= lanes), None)

    @property
    def fills_lanes(self) -> bool:
        """True if positions along the line are contiguous and fill vectors except for one or two lanes."""
        is_contiguous = abs(self.moving.step(self.along) or 0) == 1
        return is_contiguous and _used(self.facts.sizes[self.along], self.facts.lanes) > _LEFT_OVER

    def rows_of_a_copy(self) -> int:
        """Return the iterations of `down` that share one copy; 1 without such a loop, 0 if a copy is too large."""
        facts, moving, l2_bytes = self.facts, self.moving, self.facts.target.l2_bytes
        own = [name for name in self.terms if name in moving.steps and name not in dict(self.lines[:2]).values()]
        covered = _covered_elements(facts, moving, self.lines[0], facts.sizes[self.along])
        row = facts.iterations(own) * moving.size_bytes * covered
        if self.down is None:
            return int(row <= l2_bytes // 2)
        size = facts.sizes[self.down]
        for count in range(min(size, _MOST_ROWS), 0, -1):
            room = l2_bytes // (5 if count > 1 else 2)
            if size % count == 0 and row * _covered_elements(facts, moving, self.lines[1], count) <= room:
                return count
        return 0

    def tiles(self, rows: int) -> Iterator[_Tile]:
        """Yield tiles that fit the registers, without remaining rows, vectors, or positions that would be lanes."""
        sizes, window = self.facts.sizes, self.facts.sizes[self.taps]
        several = divisors(-(-sizes[self.lanes] // self.facts.lanes), MOST_VECTORS)
        several = several if self.is_copied else several[-1:]  # read from memory: best read once
        most, is_even = min(sizes[self.along], 16), self.is_copied and self.fills_lanes
        counts = divisors(sizes[self.along], most) if is_even else range(1, most + 1)
        for vectors, along, down in product(several, counts, divisors(rows, 4)):
            for taps in {1, window} if window <= _LONGEST else divisors(window, 4):
                tile = _Tile(vectors, along, down, taps)
                if tile.sums + vectors * taps + taps <= self.facts.target.vector_registers:
                    yield tile

    def speed(self, tile: _Tile) -> float:
        """Return useful vector multiply-adds per cycle: a tile is bound by multipliers, by the latency of its sums,
        by its loads, or by its instructions; then it is stored."""
        facts, store = self.facts, self.facts.stores[0]
        step, tap = (self.moving.step(name) or 0 for name in self.lines[0])
        offsets = {step * n + tap * k for n in range(tile.along) for k in range(tile.taps)}  # shared by neighbours
        products, loads = tile.sums * tile.taps, tile.vectors * tile.taps + tile.rows * len(offsets)
        cycles = max(products / 2, 4.0 * tile.taps, loads / 2, (products + loads + 5) / _ISSUED)
        transposed = 0 if store.step(self.along) != 1 else tile.along - tile.along % 4
        stored = tile.vectors * tile.rows * (transposed * _TRANSPOSED_STORE + (tile.along - transposed) * _SCATTER)
        if store.step(self.lanes) == 1:
            stored = tile.sums
        filling = 0.0 if self.is_copied else 1.0 if self.panel.step(self.lanes) == 1 else facts.lanes
        cycles += tile.vectors * tile.taps * filling / self.readers(tile)
        steps = facts.iterations(self.terms)
        used = _used(facts.sizes[self.lanes], facts.lanes) * _used(facts.sizes[self.along], tile.along)
        used *= _LEFT_OVER if self.is_copied and facts.sizes[self.along] % tile.along else 1.0
        return used * tile.sums * steps / (steps / tile.taps * cycles + stored + _AROUND)

    def readers(self, tile: _Tile) -> int:
        """Tiles that read a panel."""
        others = [name for name in self.facts.outputs if name not in (self.along, self.lanes, *self.panel.steps)]
        return self.facts.iterations(others) * -(-self.facts.sizes[self.along] // tile.along)

    def pays(self, tile: _Tile) -> bool:
        """True if these lanes pay although rows are read in place. They fill vectors, unlike reduction elements that
        are contiguous in both operands. The reduction is long compared to transposing its results, and enough tiles
        reuse a panel."""
        facts, last = self.facts, self.terms[-1]
        are_lanes = self.panel.step(last) == 1 and facts.sizes[last] % facts.lanes == 0
        is_long = facts.stores[0].step(self.lanes) == 1 or facts.iterations(self.terms) >= 2 * facts.lanes
        are_read_again = self.readers(tile) >= 2 * LEAST_READERS
        return facts.sizes[self.lanes] >= facts.lanes and not are_lanes and is_long and are_read_again

    def speed_along(self) -> float:
        """Return the speed of a tile whose lanes are positions along the line, with its loads at every step of the
        reduction."""
        facts, size = self.facts, self.facts.sizes[self.along]
        blocks = -(-size // facts.lanes)
        vectors, rows = min(4, blocks), min(6, facts.sizes[self.lanes])
        load = _GATED if self.moving.is_gated else 2.0
        load *= 1.0 if abs(self.moving.step(self.along) or 0) == 1 else facts.lanes / 2
        cycles = max(vectors * rows / 2, (vectors * rows + rows + vectors * load) / _ISSUED)
        return vectors * rows / cycles * _used(size, facts.lanes)


def _used(size: int, each: int) -> float:
    """Return the fraction of blocks of a loop that its iterations fill."""
    return size / (-(-size // each) * each)


def window_schedule(facts: Facts) -> Schedule | None:
    """The schedule without its threads; None where the kernel is something else, or better done with other lanes."""
    window = _find(facts) if facts.target.has_masks and not facts.target.group_items else None
    if window is None or (len(window.terms) == 1 and not window.is_copied):
        return None
    schedule = Schedule(facts.ast)
    channels = window.channels  # contiguous data is read from one line
    is_moved = channels is not None and schedule.try_add("move_inner", channels)
    blocks, shared = _in_blocks(schedule, window)
    if blocks or is_moved:
        window = _find(analyze(schedule.ast, facts.target), window.lanes)
    return schedule if window is not None and _tiled(schedule, window, blocks, shared) else None


def _tiled(schedule: Schedule, window: _Window, blocks: Sequence[str], shared: Sequence[str]) -> bool:
    """Build copies, register tile and order of a reduction that accumulates in the output over the loops `blocks`;
    the `shared` loops are outside of them. Return True if it pays."""
    facts, lanes, sizes = window.facts, window.lanes, window.facts.sizes
    rows = window.rows_of_a_copy() if window.is_copied else 1
    vectors, room = -(-sizes[lanes] // facts.lanes), facts.target.l2_bytes // 2
    panel = facts.iterations(window.terms) * facts.lanes * window.panel.size_bytes
    tile = max(window.tiles(rows), key=window.speed, default=None)
    if tile is None or panel * tile.vectors > room:
        return False
    is_better = window.speed(tile) > window.speed_along() and (window.is_copied or window.pays(tile))
    if not is_better and (window.is_copied or not blocks):
        return False
    fits_panel = panel * vectors <= room
    down = [] if window.down is None or rows < 2 else [window.down]
    inside = schedule.cut("split", down[0], rows) if down and rows < sizes[down[0]] else down
    if window.is_copied:
        _stage_rows(schedule, window, inside)
    schedule.cut("vectorize", lanes, facts.lanes)
    schedule.cut("unroll", lanes, tile.vectors)
    schedule.cut("unroll", window.along, tile.along)
    for name in inside:
        schedule.cut("unroll", name, tile.rows)
    _stage_panel(schedule, window, is_whole=fits_panel and vectors > tile.vectors)
    inside_tile = [*inside, window.along]
    others = [name for name in facts.outputs if name not in (*inside_tile, *blocks, lanes)]
    inner = [lanes, *inside_tile] if window.is_copied else [*inside_tile, lanes]
    outermost = [name for name in others if name in shared]
    order = [*outermost, *blocks, *(name for name in others if name not in outermost), *inner]
    schedule.order(order if fits_panel else [lanes, *blocks, *others, *inside_tile])
    schedule.cut("unroll", window.taps, tile.taps)
    if not blocks:
        _prefetch_rows(schedule, window, rows)
    return True


def _in_blocks(schedule: Schedule, window: _Window) -> tuple[list[str], list[str]]:
    """Accumulate a reduction whose panel exceeds the caches in the output, block by block: return the loops over
    blocks.

    Threads share an outer loop: that of the lanes, or slices of a different one if all lanes are packed at once.
    """
    facts = window.facts
    vectors = -(-facts.sizes[window.lanes] // facts.lanes)
    together = vectors if vectors <= 2 * MOST_VECTORS else MOST_VECTORS
    term = facts.lanes * window.panel.size_bytes
    if facts.iterations(window.terms) * term * min(vectors, MOST_VECTORS) <= facts.target.l2_bytes // 2:
        return [], []
    room = facts.target.l2_bytes // 4 // (term * together)
    taps = [tap for _, tap in window.lines] if window.is_copied else []
    cuts: dict[str, int] = {}  # outermost first, each with the iterations of a block; the last loops stay whole: taps
    for name in (*taps, *(name for name in reversed(window.terms) if name not in taps)):
        each = max(divisors(facts.sizes[name], max(1, room)))
        room = room // each if each == facts.sizes[name] else 0
        cuts = cuts if each == facts.sizes[name] else {name: each, **cuts}
    if not schedule.try_add("accumulate", *chain(*cuts.items())):
        return [], []
    outputs = [name for name in facts.outputs if name != window.lanes]
    if together == vectors and outputs:
        widest = max(outputs, key=lambda name: facts.sizes[name])
        enough = facts.iterations(outputs) // _OUTPUTS  # each slice packs again
        parts = max(divisors(facts.sizes[widest], max(1, min(SHARES, enough))))
        if parts > 1:
            schedule.cut("split", widest, facts.sizes[widest] // parts)
            return list(cuts), [widest]
    return list(cuts), []


def _find(facts: Facts, wanted: str | None = None) -> _Window | None:
    group = facts.main
    if group is None or facts.sum is None or facts.loops_with_row_buffers or len(group.loads) != 2:
        return None
    found: list[_Window] = []
    for moving, panel in (group.loads, group.loads[::-1]):
        lanes = [n for n in group.around if n in panel.steps and n not in moving.steps and wanted in (None, n)]
        is_plain = not panel.is_gated and None not in panel.steps.values() and None not in moving.steps.values()
        if not is_plain or not lanes or any(a.memory.op is not Ops.PARAM for a in (moving, panel)):
            continue
        if moving.memory is panel.memory or not panel.steps.keys() >= set(group.loops):
            continue
        lane = max(lanes, key=lambda name: facts.sizes[name])
        lines = _lines(facts, moving, {name for name in facts.outputs if name in panel.steps})
        if lines and lines[0][0] in group.around:
            return _Window(facts, moving, panel, lane, lines, group.loops)
        rows = [name for name in facts.outputs if name in moving.steps and name not in panel.steps]
        if rows and moving.step(group.loops[-1]) == 1:
            row = max(rows, key=lambda name: (facts.sizes[name], -abs(moving.step(name) or 0)))
            found.append(_Window(facts, moving, panel, lane, [(row, group.loops[-1])], group.loops, is_copied=False))
    return max(found, key=lambda window: max(map(window.speed, window.tiles(1)), default=0), default=None)


def _lines(facts: Facts, moving: Access, without: Collection[str] = ()) -> list[tuple[str, str]]:
    """Output loops and the reduce loop on the same line of the operand that moves, the one that steps least first."""
    loops = sorted(names_of(moving.node.ranges))
    lines: list[tuple[str, str]] = []
    for names in share_axis(moving.node, [name for name in loops if name not in without]):
        outputs = [name for name in names if name in facts.outputs]
        if len(names) == 2 and len(outputs) == 1:
            lines.append((outputs[0], next(name for name in names if name not in outputs)))
    return sorted(lines, key=lambda line: abs(moving.step(line[0]) or 0))


def _covered_elements(facts: Facts, moving: Access, line: tuple[str, str], count: int) -> int:
    """Return the elements on a line that `count` iterations of its output loop cover."""
    step, tap = (abs(moving.step(name) or 1) for name in line)
    unit = math.gcd(step, tap)
    return 1 + (step * (count - 1) + tap * (facts.sizes[line[1]] - 1)) // unit


def _stage_rows(schedule: Schedule, window: _Window, inside: Sequence[str]) -> None:
    """Stage the rows that a block of the output needs, contiguous and without gates."""
    line, channels = dict(window.lines[:2]), window.channels
    first = [name for name in window.terms if name in window.moving.steps and name not in (*line.values(), channels)]
    down = [] if window.down is None else [*inside, line[window.down]]
    last = [channels] if channels is not None else []
    copies = schedule.add("stage", window.moving.slot, *first, *down, window.along, window.taps, *last)
    if channels is not None or min(abs(window.moving.step(name) or 0) for name in window.lines[0]) == 1:
        schedule.cut("vectorize", copies[channels or window.along], window.facts.lanes)


def _stage_panel(schedule: Schedule, window: _Window, *, is_whole: bool) -> None:
    """Stage the operand of the lanes, for one tile or for all; if its reduction elements are adjacent, transpose it
    in blocks."""
    lanes, last, sizes = window.lanes, window.terms[-1], window.facts.sizes
    whole = [lanes] if is_whole else []
    copies = schedule.add("stage", window.panel.slot, *whole, *window.terms, *schedule.unrolled_loops(lanes))
    if window.panel.step(lanes) != 1 and window.panel.step(last) == 1 and sizes[last] > _LONGEST:
        transposed = max(divisors(sizes[last], BLOCK_ROWS), key=lambda n: (n & ~3) / n * (n > 1) + n / 100)
        schedule.cut("unroll", copies[last], transposed)


def _prefetch_rows(schedule: Schedule, window: _Window, rows: int) -> None:
    """Prefetch the rows of the next copy while this one is made."""
    step = abs(window.moving.step(window.down) or 0) if window.down is not None else 0
    if step and window.moving.memory_bytes > window.facts.target.l2_bytes:
        schedule.add("prefetch", rows * step * window.moving.size_bytes)


def overlapping(schedule: Schedule, facts: Facts, main: ReductionGroup, lanes: str, width: int) -> bool:
    """Schedule windows next to the lanes (depthwise convolutions, pools): small ones are unrolled, and the tile has
    the positions whose windows overlap most. Return True if the kernel is one."""
    moving = next((a for a in main.loads if a.step(lanes) == 1 and len(_lines(facts, a)) == len(main.loops)), None)
    if moving is None or facts.symbolic or len(facts.groups) > 1 or not main.around.issuperset(facts.outputs):
        return False
    lines, most = _lines(facts, moving), facts.target.vector_registers // 2
    while facts.iterations([tap for _, tap in lines]) > _SMALL:
        lines.pop()

    def reads(tile: Sequence[int]) -> float:
        """Return the elements that are read per result."""
        found = zip(lines, tile, [facts.sizes[name] for name, _ in lines], strict=True)
        return math.prod(_covered_elements(facts, moving, line, n) * -(-size // n) / size for line, n, size in found)

    best = min((t for t in product(range(1, most + 1), repeat=len(lines)) if math.prod(t) <= most), key=reads)
    if lanes in chain(*lines) or reads(best) == reads([1] * len(lines)):
        return False
    schedule.cut("vectorize", lanes, width)
    for (name, _), count in zip(lines, best, strict=True):
        schedule.cut("unroll", name, min(count, facts.sizes[name]))
    for _, tap in lines:
        schedule.cut("unroll", tap, facts.sizes[tap])
    inner = [name for tap in main.loops for name in schedule.unrolled_loops(tap) or [tap]]
    for panel in main.loads:
        if panel.step(lanes) not in (0, 1) and not panel.is_gated and panel.memory_bytes <= facts.target.l2_bytes // 4:
            blocks = [lanes] if lanes in schedule.loops else []
            schedule.try_add("stage", panel.slot, *blocks, *inner, *schedule.unrolled_loops(lanes))
    return True


def along_windows(schedule: Schedule, facts: Facts, main: ReductionGroup, lanes: str, width: int) -> bool:
    """Schedule windows along the lanes: a row serves all windows of a tile that contain it. Gated data are copied
    first. Return True if the kernel is one, and it pays."""
    found = _sliding(facts, main, lanes) if facts.target.has_masks else None
    if found is None:
        return False
    (moving, lines), sizes, most = found, facts.sizes, facts.target.vector_registers // 2
    (down, tap), row = lines[1], _covered_elements(facts, moving, lines[0], sizes[lanes])
    blocks = -(-sizes[lanes] // width)
    vectors = max(divisors(blocks, max(1, most // 4)))
    together = _rows_together(facts, moving, lines, row, blocks) if moving.is_gated else sizes[down]
    if together < tile_of(sizes[down], most // vectors):
        return False
    inside = schedule.cut("split", down, together) if together < sizes[down] else [down]
    if moving.is_gated:
        copies = schedule.add("stage", moving.slot, *inside, lanes, *main.loops)
        schedule.cut("vectorize", copies[lanes], facts.lanes)
        schedule.cut("unroll", copies[lanes], max(divisors(-(-row // facts.lanes), MOST_VECTORS)))
    schedule.cut("vectorize", lanes, width)
    schedule.cut("unroll", lanes, vectors)
    for name in inside:
        schedule.cut("unroll", name, tile_of(together, most // vectors))
    schedule.cut("unroll", tap, max(divisors(sizes[tap], _LONGEST)))
    return True


def _sliding(facts: Facts, main: ReductionGroup, lanes: str) -> tuple[Access, list[tuple[str, str]]] | None:
    """Return the operand of a window along the lanes, and its lines, if the reduction has nothing else (depthwise,
    channels first)."""
    found = [(a, lines) for a in main.loads if (lines := _lines(facts, a)) and lines[0][0] == lanes]
    are_two = len({load.memory for load in main.loads}) == len(main.loads) == 2  # of one buffer a copy would hold both
    is_one = facts.sum is not None and are_two and bool(found) and len(found[0][1]) == len(main.loops) > 1
    is_inside = main.around.issuperset(facts.outputs)
    waits = facts.iterations(main.loops) <= _SMALL and exceeds_caches(facts.stores[0].memory_bytes, facts.target)
    return found[0] if is_one and is_inside and not waits else None  # kernels bound by memory prefetch rows by tiles


def _rows_together(facts: Facts, moving: Access, lines: Sequence[tuple[str, str]], row: int, blocks: int) -> int:
    """Return the iterations of the next line that share a copy of rows: those that fit a fourth of L2; 0 if no copy
    pays."""
    size, taps = facts.sizes[lines[1][0]], facts.iterations([tap for _, tap in lines])
    others = facts.iterations([name for name, _ in lines[2:]])  # are copied one by one
    copied = {n: others * _covered_elements(facts, moving, lines[1], n) for n in divisors(size, size)}
    room = facts.target.l2_bytes // 4 // (row * moving.size_bytes)
    most = max((n for n, rows in copied.items() if rows <= room), default=0)
    pays = taps > _SMALL or most * blocks * taps >= 2 * LEAST_READERS * copied.get(most, 0) * -(-row // facts.lanes)
    return most if pays and moving.memory.op is Ops.PARAM else 0

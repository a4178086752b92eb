"""Schedules from access strides alone: which loop becomes lanes, which ones a register tile, which operand is packed.

Nothing here depends on what a kernel computes. A load that is invariant in a loop is reused by a tile over it; a loop
with unit stride can become lanes. These two facts give the register tile of a matrix product or a convolution, the
partial sums of a row reduction, and the access streams of elementwise work. Why: docs/topics/matrix-products.md. Tests:
tests/compiler/optimize/test_heuristic.py.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from kernmill.ir import ALIAS_BYTES, Ops

from ..kernel.facts import names_of
from .actions import Action, fits
from .analysis import EXPENSIVE, Access, Facts, ReductionGroup, exceeds_caches
from .packing import SMALL_REDUCE, pack, prefetch_by_tiles
from .rows import passes_along_rows, prefetch_next_row
from .schedule import Schedule
from .tiles import MANY_ACCUMULATORS, MOST_ROWS, MOST_VECTORS, accumulators, best_block, tile_of
from .windows import along_windows, overlapping

__all__ = ["few_rows_schedule", "loops_schedule", "running_schedule", "scatter_schedule"]

_SHORT_ROWS = 16  # that are less than a vector each, in an iteration
_CHEAP = 24  # elementwise ops; above, an iteration has enough to do
_MAX_BODY = 96  # values of a tile times its unrolled reduce iterations
_MAX_STRIDE = 4  # elements: vectors with at most this stride are loaded whole and their lanes selected
_FEW_ROWS = 128  # of a product; more compute several times as long as reading takes, in any order
_CONVERTING_COST = 0.25  # of a narrower operand of a product value by value, in fourths of a gather
_WASTE = 1.5  # of a product's vector of which no lane is used, in units of a fourth of a gather
_SHORT_BLOCK = 32  # rows; fewer rows return to their accumulators soon, so blocks of the reduction can be shorter
_TRANSPOSING_COST = 1.5  # and if their blocks are transposed in registers
_SHORT_REDUCTION = 16  # reduction elements per result, below which results are like an access stream
_LEAST_EVEN = 4  # minimum lanes without masks on targets with slow masks


def loops_schedule(facts: Facts) -> Schedule:
    """Return the default schedule: an access stream, or reductions and their epilogues."""
    schedule, main = Schedule(facts.ast), facts.main
    lane_loop = _lane_loop(facts, main)
    is_large = exceeds_caches(facts.stores[0].memory_bytes, facts.target)
    if facts.row_writers and is_large and not facts.target.has_fast_nontemporal_stores:
        schedule.try_add("buffer_in_output", facts.row_writers[-1])  # its prefetch overlaps with computation
    passes_along_rows(schedule, facts)
    if main is None:
        _stream(schedule, facts, lane_loop)
    else:
        _reduction(schedule, facts, main, lane_loop)
    prefetch_next_row(schedule, facts)
    return schedule


def scatter_schedule(facts: Facts) -> Schedule | None:
    """Scatter terms to the indices that they contain: in lanes and unrolled if they are contiguous there; single
    terms are scattered as scalars, and the lanes initialize the output."""
    store, schedule, total = facts.stores[0], Schedule(facts.ast), facts.ast.src[0].src[1]
    if total.op is not Ops.REDUCE or total.src[0].op is not Ops.WHERE:  # most kernels: nothing has to be tried
        return None
    for terms, output in ((group.loops[0], name) for group in facts.groups for name in facts.outputs):
        contiguous = next((name for name in facts.outputs if store.step(name) == 1), output)
        numbers = facts.sizes[output] * (store.step(output) or 0)
        if numbers > 2 * facts.lanes and schedule.try_add("scatter", terms, output):
            width = _width(facts, contiguous)
            schedule.cut("vectorize", f"{output}'" if contiguous == output else contiguous, width)
            if contiguous != output:
                schedule.cut("unroll", contiguous, min(MOST_VECTORS, -(-facts.sizes[contiguous] // width)))
            return schedule
    return None


# --- choosing
def _cost(accesses: list[Access], loop: str) -> float:
    """Return how many accesses would be gathers if the loop became lanes; stride 2 counts as two loads and a
    shuffle."""
    cost_of = {0: 0.0, 1: 0.0} | {step: 0.125 * step for step in range(2, _MAX_STRIDE + 1)}
    return sum(cost_of.get(-1 if (step := a.step(loop)) is None else step, 1.0) for a in accesses)


def _packed_cost(facts: Facts, main: ReductionGroup, loop: str) -> float:
    """Return the same cost for a reduction, where a gather into a panel that many rows reuse is cheap."""
    total, is_alone = 0.0, sum(a.depends_on(loop) for a in main.loads) == 1
    transposed = _copies_across(facts, main.terms)[0] if _are_rows_transposed(facts, main, loop) else 1.0
    for a in main.loads:
        is_panel = is_alone and bool(main.terms) and loop in facts.outputs and not a.is_gated
        each = _TRANSPOSING_COST if _is_panel_transposed(facts, main, a, loop) else 1 + _TRANSPOSING_COST
        total += _cost([a], loop) * min(transposed, each / _uses(facts, a, loop) if is_panel else 1.0)
    return total


def _uses(facts: Facts, a: Access, loop: str) -> int:
    """Return how often a value is read: the iterations of other output loops that its index is invariant in."""
    return facts.iterations([name for name in facts.outputs if name != loop and name not in a.steps])


def _is_panel_transposed(facts: Facts, main: ReductionGroup, a: Access, loop: str) -> bool:
    """True if the kernel is one reduction whose panel is transposed in registers and reused often: its elements are
    adjacent, in rows at a large stride."""
    is_one = len(facts.groups) == 1 and main.around.issuperset(facts.outputs) and a.step(main.terms) == 1
    return is_one and _uses(facts, a, loop) >= facts.lanes // 2 and (a.step(loop) or 0) * a.size_bytes % ALIAS_BYTES > 0


def _lane_loop(facts: Facts, main: ReductionGroup | None) -> str | None:
    """Return the loop with unit stride in most of the accesses that matter."""
    scores: dict[str, float] = {}
    candidates = [*facts.outputs, *(main.loops if main else [])]
    for position, name in enumerate(candidates):
        size = facts.sizes[name]
        is_output = name in facts.outputs
        if size < 2 or name in facts.loops_with_row_buffers or (not facts.target.has_masks and size < facts.lanes):
            continue
        if is_output and main is not None and name not in main.around:
            continue  # the reduction is outside this loop: its lanes would be idle
        touched = main.loads if main else [*facts.loads, *facts.stores]
        is_near = any(a.step(name) in range(1, _MAX_STRIDE + 1) for a in (*touched, *facts.stores))
        is_near = is_near or (main is not None and any(_is_panel_transposed(facts, main, a, name) for a in main.loads))
        is_loaded = main is not None and any(a.depends_on(loop) for a in main.loads for loop in main.loops)
        if not is_near and main is not None and (is_output or is_loaded):
            continue  # computed values allow any loop as lanes, and gathers happen anyway
        waste = -(-size // facts.lanes) * facts.lanes / size
        score = 4.0 * (_packed_cost(facts, main, name) if main else waste * _cost(touched, name))
        score += (waste - 1) * (_WASTE if main and is_output and len(main.loads) > 1 else 2) - position * 0.01
        if main is not None:  # work per result is little compared to a long reduction
            fold, alone = _scalar_costs(facts, facts.iterations(main.loops))
            widest = max((a.size_bytes for a in main.loads), default=0)
            if is_output:  # its lanes are multiplied by scalars, each converted separately
                score += _CONVERTING_COST * sum(a.size_bytes < widest and not a.depends_on(name) for a in main.loads)
            score += min(2.0, alone) * _cost(facts.stores, name) if is_output else 0.25 + fold
        scores[name] = score
    return min(scores, key=lambda name: scores[name], default=None)


def _scalar_costs(facts: Facts, terms: int) -> tuple[float, float]:
    """Return the cost per reduction element of folding a vector, and of storing its results one by one, in units of a
    fourth of a gather. A fold has a dependent shuffle and addition for each halving; stores take as long as four."""
    machine, halvings = facts.target.machine, facts.lanes.bit_length() - 1
    step = 4 * (1 / machine.shuffle + machine.latency) / machine.lane_cycles / terms
    return halvings * step, 4 * step


def _are_rows_transposed(facts: Facts, main: ReductionGroup, rows: str) -> bool:
    """True if short rows are unrolled completely and transposed in registers into lanes: otherwise each row needs a
    horizontal reduction, and a mask unless it fills vectors."""
    terms, loads = main.terms, [a for a in main.loads if a.steps.keys() - {main.terms}]
    is_short = (
        bool(facts.sizes.get(terms, 0) % min(facts.lanes, MOST_ROWS))
        and facts.sizes[terms] <= facts.target.accumulators
    )
    is_fixed = terms not in facts.symbolic and rows in facts.outputs and bool(loads)
    return is_short and is_fixed and all(a.step(terms) == 1 < (a.step(rows) or 0) and not a.is_gated for a in loads)


def _width(facts: Facts, name: str) -> int:
    """Lanes for a loop: the register's, or fewer for a short loop."""
    width = facts.lanes
    while (width > 2 and width >= 2 * facts.sizes[name]) or (not facts.target.has_masks and facts.sizes[name] % width):
        width //= 2
    even = gcd(width, facts.sizes[name])
    return even if facts.has_slow_masks(name) and even >= _LEAST_EVEN else width


def _stream(schedule: Schedule, facts: Facts, lane_loop: str | None) -> None:
    """Elementwise work: lanes, and a few vectors per iteration."""
    if _unroll_lookups(schedule, facts):
        return
    pairs = [name for name in facts.outputs if name != lane_loop and _is_crossed(facts, name)]
    for name in pairs:
        schedule.cut("unroll", name, 2)
    if lane_loop is None or _width(facts, lane_loop) < 2:
        return
    lane_loop, across = (lane_loop, None) if pairs else _across(facts, lane_loop)
    width, size = _width(facts, lane_loop), facts.sizes[lane_loop]
    if not pairs and across is None and 4 < width < size and size % width and not size % (width // 2):
        width //= 2  # masked stores hold up the loads behind them
    schedule.cut("vectorize", lane_loop, width)
    if pairs:
        return
    if across is not None:
        _transpose(schedule, facts, lane_loop, across, width)
    elif width == size < facts.lanes and facts.work <= _CHEAP and [lane_loop] == facts.outputs[-1:] != facts.outputs:
        rows = facts.outputs[-2]  # short ones, of which some make a body
        schedule.cut("unroll", rows, 1 if rows in facts.symbolic else gcd(facts.sizes[rows], _SHORT_ROWS))
    else:
        schedule.cut("unroll", lane_loop, min(MOST_VECTORS if facts.work <= _CHEAP else 2, -(-size // width)))
    _store_past_caches(schedule, facts, lane_loop)


def _unroll_lookups(schedule: Schedule, facts: Facts) -> bool:
    """Unroll table lookups of bytes so that lanes are words; return True if this applies. The bytes of a word, and
    words from the same bytes, are unrolled: one lookup serves them all. The tables must fit the caches."""
    if len(facts.outputs) < 3:
        return False
    (words, lanes, parts), store = facts.outputs[-3:], facts.stores[0]
    tables = [a for a in facts.loads if a.step(lanes) is None]
    serves = bool(tables) and not any(a.depends_on(parts) or facts.target.is_streamed(a.memory_bytes) for a in tables)
    is_word = facts.sizes[parts] == store.step(lanes) == _MAX_STRIDE and store.step(parts) == store.size_bytes == 1
    if not serves or not is_word or facts.sizes[lanes] % facts.lanes or words in facts.symbolic:
        return False
    schedule.cut("vectorize", lanes, facts.lanes)
    schedule.cut("unroll", parts, _MAX_STRIDE)
    schedule.cut("unroll", words, gcd(facts.sizes[words], SMALL_REDUCE))
    return True


def _is_crossed(facts: Facts, name: str) -> bool:
    """True if both iterations of a loop of two access the same elements, each in its own order."""
    steps = {a.step(name) or 0 for a in facts.loads}
    return facts.sizes[name] == 2 and any(step and -step in steps for step in steps)


def _across(facts: Facts, lane_loop: str) -> tuple[str, str | None]:
    """Return the loop of the lanes, and a loop to unroll because accesses that lanes would gather or scatter are
    contiguous over it: short rows, a transpose. Either can be the lanes, which may end with a mask; unrolled
    instances with masks cannot be transposed."""
    for name in reversed(facts.outputs):
        steps = {a.step(lane_loop) for a in (*facts.loads, *facts.stores) if a.step(name) == 1}
        if name != lane_loop and facts.sizes[name] > 1 and not steps <= {None, 0, 1}:
            is_better = 2 * _copies_across(facts, lane_loop)[0] < _copies_across(facts, name)[0]
            return (name, lane_loop) if is_better and _width(facts, name) > 1 else (lane_loop, name)
    return lane_loop, None


def _copies_across(facts: Facts, name: str) -> tuple[float, int]:
    """Return the accesses of a lane per iteration of the loop, a fraction if blocks are transposed, and the
    instances to unroll."""
    size, lanes = facts.sizes[name], facts.lanes
    count = size if size <= facts.target.accumulators and name not in facts.symbolic else lanes
    accesses = count // lanes + (count % lanes >> 2).bit_count() + count % 4
    return accesses / count if count > _MAX_STRIDE else 0.0, count


def _transpose(schedule: Schedule, facts: Facts, lane_loop: str, across: str, width: int) -> None:
    """Transpose square blocks in registers; a few adjacent ones fill whole cache lines on both sides."""
    schedule.cut("unroll", across, _copies_across(facts, across)[1])
    if facts.sizes[lane_loop] >= 2 * MOST_VECTORS * width:
        inside = schedule.cut("split", lane_loop, MOST_VECTORS)
        outer = [name for name in facts.outputs if name not in (lane_loop, across)]
        schedule.order((*outer, lane_loop, across, *inside))


def _store_past_caches(schedule: Schedule, facts: Facts, lane_loop: str) -> None:
    """Write results far larger than the caches with non-temporal stores. If these are slow, not in kernels of
    several passes: their last pass would wait for the writes, while normal stores overlap with the next passes.
    Results of long reductions are prefetched, or accumulated block by block (packing.py)."""
    terms = sum(facts.iterations(group.loops) for group in facts.groups)
    is_one_pass = not facts.row_writers and terms <= _SHORT_REDUCTION
    is_last_pass = not any(lane_loop in group.around for group in facts.groups)
    if facts.stores[0].step(lane_loop) != 1 or not exceeds_caches(facts.stores[0].memory_bytes, facts.target):
        return
    if is_one_pass or (is_last_pass and facts.target.has_fast_nontemporal_stores):
        schedule.add("stream")
    if is_one_pass:
        schedule.add("prefetch", facts.target.machine.prefetch_bytes)


def _folded_rows(schedule: Schedule, facts: Facts, main: ReductionGroup, lane_loop: str | None) -> bool:
    """Fold a few short rows in one body, where their folds share shuffles; return True if this applies."""
    terms, width, loads = main.terms, min(facts.lanes, MOST_ROWS), main.loads
    together = {name: gcd(facts.sizes[name], width) for name in facts.outputs if name not in facts.symbolic}
    rows = max(together, key=lambda name: together[name], default="")
    if rows not in main.around or terms != lane_loop or terms in facts.symbolic or facts.sizes[terms] % width:
        return False
    body, sizes = together[rows] * facts.sizes[terms] // width * len(loads), [a.memory_bytes for a in loads]
    is_plain = all(a.is_affine and a.depends_on(rows) and a.step(terms) == 1 for a in loads) and len(facts.groups) == 1
    if (
        together[rows] < 2
        or not is_plain
        or body > _MAX_BODY
        or facts.work > _CHEAP
        or facts.target.is_streamed(max(sizes))
    ):
        return False
    schedule.cut("vectorize", terms, width)
    schedule.cut("unroll", terms, facts.sizes[terms] // width)
    schedule.cut("unroll", rows, together[rows])
    return True


def _reduction(schedule: Schedule, facts: Facts, main: ReductionGroup, lane_loop: str | None) -> None:
    if _folded_rows(schedule, facts, main, lane_loop):
        return
    width = _width(facts, lane_loop) if lane_loop is not None else 1
    lanes = lane_loop if width > 1 else None
    if lanes is not None:
        if any(windows(schedule, facts, main, lanes, width) for windows in (along_windows, overlapping)):
            _store_past_caches(schedule, facts, lanes)
            return
        schedule.cut("vectorize", lanes, width)
    slices = _interleaved_slices(facts, main, lanes)
    streams = {} if slices else _streams(facts, main, lane_loop)
    tiles = slices or streams or _register_tile(facts, main, lanes, width)
    for name, amount in tiles.items():
        schedule.cut("interleave" if streams else "unroll", name, amount)
    _reduce_loops(schedule, facts, main, lane_loop, width, prod(tiles.values()))
    for group in facts.groups:  # lanes inside lanes there are none
        is_around = any(group.loops[-1] in other.around for other in facts.groups)
        if group is not main and not is_around and lanes not in group.around:
            _other_group(schedule, facts, group)
    outer = [name for name in facts.outputs if all(name not in g.around for g in facts.groups)]
    if outer:  # loops inside which a finished reduction is used: a separate stream
        if lanes not in facts.outputs:
            inner = replace(facts, outputs=outer, loads=[a for a in facts.loads if a not in main.loads])
            _stream(schedule, inner, _lane_loop(inner, None))
        return
    if lanes is not None:
        pack(schedule, facts, main, lanes, width)
        prefetch_by_tiles(schedule, facts, main, lanes)
        _store_past_caches(schedule, facts, lanes)
    if lane_loop in main.loops and len(facts.groups) == 1:
        _large_outside(schedule, facts, main, tiles, width)
        if not slices and not facts.target.has_hardware_prefetch and _is_read_once(facts, main, tiles):
            schedule.add("prefetch", (1 if streams else 2) * facts.target.machine.prefetch_bytes)


def running_schedule(facts: Facts) -> Schedule | None:
    """Compute short reductions over the same terms, selected by an output loop (prefix sums), together. Lanes are
    adjacent elements next to the scanned axis, or rows transposed in registers: at most two vectors."""
    main, store = facts.main, facts.stores[0]
    if main is None or not main.terms or len(facts.groups) > 1:
        return None
    terms, size = main.terms, facts.sizes[main.terms]
    choices = [set(names_of(n.src[0].ranges)) for n in facts.ast.toposort() if n.op is Ops.WHERE]
    scanned = next((n for n in facts.outputs if {n, terms} in choices and facts.sizes[n] == size), "")
    is_transposed = store.step(scanned) == 1
    rows = next((n for n in facts.outputs if store.step(n) == (size if is_transposed else 1)), "")
    steps = {(a.step(scanned), a.step(terms), a.step(rows)) for a in main.loads if terms in a.steps}
    if not rows or scanned not in main.around or steps != {(0, store.step(scanned), store.step(rows))}:
        return None
    most = min(_SHORT_REDUCTION, 2 * facts.lanes) if is_transposed else _SHORT_REDUCTION
    is_short = size <= most and rows not in facts.symbolic
    schedule = Schedule(facts.ast)
    fills = facts.sizes[rows] % facts.lanes == 0 if is_transposed else facts.sizes[rows] > 1
    if not is_short or not fills or not schedule.try_add("vectorize", rows, _width(facts, rows)):
        return None
    schedule.cut("unroll", scanned, size)
    schedule.cut("unroll", terms, size)
    _store_past_caches(schedule, facts, scanned if is_transposed else rows)
    return schedule


def _large_outside(schedule: Schedule, facts: Facts, main: ReductionGroup, tiles: dict[str, int], width: int) -> None:
    """Read the larger of two operands that together exceed the caches once, and the other, in blocks, from L2."""
    loads = {name: [a for a in main.loads if name in a.steps] for name, count in tiles.items() if count > 1}
    if len(loads) != 2 or any(len(found) != 1 for found in loads.values()) or not main.terms:
        return
    size = {n: facts.iterations((n, main.terms)) * found[0].size_bytes for n, found in loads.items()}  # of one product
    small, large = sorted(size, key=lambda name: size[name])
    if size[large] <= facts.target.l2_bytes:
        return
    blocks = -(-4 * size[small] // facts.target.l2_bytes)
    each = -(-facts.sizes[main.terms] // width // blocks)
    is_cut = size[small] > facts.target.l2_bytes // 2 and schedule.try_add("accumulate", main.terms, each)
    outer = [name for name in facts.outputs if name not in loads]
    schedule.order((*outer, large, *([main.terms] if is_cut else []), small))


def _is_read_once(facts: Facts, main: ReductionGroup, tiles: dict[str, int]) -> bool:
    """True if a reduction reads data larger than L1 once: its loads depend on every loop that is not completely inside
    a tile. Data that others reuse meanwhile is in L2."""
    moving = {name for name in facts.outputs if tiles.get(name) != facts.sizes[name]}
    sizes = {a.memory: a.memory_bytes for a in main.loads if moving <= a.steps.keys()}
    return sum(sizes.values()) > facts.target.l1_bytes


def _streams(facts: Facts, main: ReductionGroup, lane_loop: str | None) -> dict[str, int]:
    """Read rows without reuse in a few access streams, each over its own slice: memory is faster then. The prefetch
    at the end of a row is for the stream's next row."""
    reused = {n for n in facts.outputs if facts.sizes[n] > 1 and any(n not in a.steps for a in main.loads)}
    names = [n for n in facts.outputs if n not in facts.symbolic]
    name = max(names, key=lambda n: (n in reused, facts.sizes[n]), default="")
    is_alone = lane_loop in main.loops and len(facts.groups) == 1 and (facts.work <= _CHEAP or name in reused)
    if not name or not is_alone or not _is_read_once(facts, main, {}):
        return {}
    read = {a.memory for a in main.loads if name in a.steps}
    count = facts.target.read_streams // len(read)
    if facts.iterations(facts.outputs) == facts.sizes[name] and name not in reused:
        count = min(count, -(-facts.sizes[name] // 2))  # two threads find something
    return {name: tile_of(facts.sizes[name], count) if count > 1 else 1}


def _interleaved_slices(facts: Facts, main: ReductionGroup, lane_loop: str | None) -> dict[str, int]:
    """Find rows without reuse that are in pieces between those of other rows (reductions over images per channel):
    adjacent rows are read together, in memory order. A piece larger than L1 counts as a row."""
    loads = [a for a in main.loads if a.depends_on(lane_loop or "")]
    is_plain = len(facts.groups) == 1 and facts.work <= _CHEAP and bool(loads)
    is_read_once = all(a.depends_on(n) for a in loads for n in facts.outputs)
    if lane_loop is None or lane_loop not in main.loops[1:] or not is_plain or not is_read_once:
        return {}
    size, stride = facts.sizes[lane_loop], min(abs(a.step(n) or 0) for a in loads for n in main.loops if n != lane_loop)
    adjacent = [
        n for n in facts.outputs if all(size <= (a.step(n) or 0) < stride for a in loads) and n not in facts.symbolic
    ]
    if not adjacent or size * max(a.size_bytes for a in loads) > facts.target.l1_bytes:
        return {}
    name = min(adjacent, key=lambda n: loads[0].step(n) or 0)
    most = max(3, min(facts.target.vector_registers // 4, -(-facts.sizes[name] // 2)))  # three are one tile
    return {name: tile_of(facts.sizes[name], most)}


def few_rows_schedule(facts: Facts) -> Schedule | None:
    """Schedule a product of few rows with a matrix that exceeds the caches: the matrix is read once, in memory order.
    None for other kernels.

    Blocks of its rows are the outer loop. Partial sums are in the output, of which a page's width fits L2. Data of the
    next block are prefetched in this one.
    """
    main, schedule = facts.main, Schedule(facts.ast)
    if main is None or not main.terms or len(facts.groups) > 1:
        return None
    lane_loop, terms = _lane_loop(facts, main), main.terms
    rows = [name for name in facts.outputs if name != lane_loop]
    matrix = next((a for a in main.loads if a.step(lane_loop or "") == 1 and not a.is_gated), None)
    if lane_loop not in facts.outputs or matrix is None or not facts.target.is_streamed(matrix.memory_bytes):
        return None
    step, size, width = matrix.step(terms) or 0, facts.sizes[terms], _width(facts, lane_loop)
    vectors, count = facts.sizes[lane_loop] // max(1, width), facts.iterations(rows)
    is_in_l2 = count * facts.target.machine.page_bytes <= facts.target.l2_bytes // 2
    if count > _FEW_ROWS or not is_in_l2 or facts.work > EXPENSIVE:
        return None
    is_one = count <= MOST_ROWS
    columns, block = 2 if rows and is_one else 4, 8 if is_one else 16
    is_whole = count == MOST_ROWS and size % 2 == 0 and size >= 16 * block  # as much work as reading
    together = 2 if is_whole or count >= _SHORT_BLOCK else 1
    page = facts.target.machine.page_bytes * (1 if rows else 2)  # of each row, read before the next rows are
    inside = min(page // (width * columns * matrix.size_bytes), vectors // (2 * columns))  # at least two blocks
    is_long = size >= 8 * block * together and not size % together
    if step <= 0 or any(name in matrix.steps for name in rows) or inside < 2 or width < 2 or not is_long:
        return None
    is_scattered = any(store.step(lane_loop) != 1 for store in facts.stores)  # each block would gather its sums
    if (is_scattered and not is_one) or not fits(facts.ast, Action("accumulate", (terms, str(block)))):
        return None
    schedule.cut("vectorize", lane_loop, width)
    schedule.cut("unroll", lane_loop, columns)
    if rows:
        schedule.cut("unroll", rows[-1], tile_of(facts.sizes[rows[-1]], MOST_ROWS if is_one else 4))
    schedule.cut("unroll", terms, together)
    outer = schedule.add("accumulate", terms, block)[terms]
    pages = schedule.cut("split", lane_loop, inside)
    schedule.order((lane_loop, terms, *pages, *rows))
    _stage_few(schedule, main, lane_loop, rows, outer)
    # one row leaves no computation to overlap with, and its eight streams are prefetched by hardware
    if rows and not (is_one and facts.target.has_hardware_prefetch):
        schedule.add("prefetch", block * together * step * matrix.size_bytes)
    return schedule


def _stage_few(schedule: Schedule, main: ReductionGroup, lane_loop: str, rows: list[str], outer: str) -> None:
    """Pack both operands of a block of the reduction: their rows may be pages apart, in the same cache sets."""
    loads = [a for a in main.loads if a.node.op is Ops.LOAD and not a.is_gated]
    left = [a for a in loads if lane_loop not in a.steps and all(a.step(name) for name in rows)]
    if not rows or len(main.loads) != 2 or len(left) != 1:
        return
    (right,) = (a for a in loads if a is not left[0])
    around, block = [name for name in rows if name in schedule.loops], (outer, *schedule.unrolled_loops(main.terms))
    schedule.add("stage", left[0].slot, *around, *schedule.unrolled_loops(rows[-1]), *block)
    if around:  # the next tile of rows reads the matrix again
        schedule.add("stage", right.slot, *block, *schedule.unrolled_loops(lane_loop))


def _register_tile(facts: Facts, main: ReductionGroup, lane_loop: str | None, width: int) -> dict[str, int]:
    """Choose output loops to unroll so that each load serves several accumulators."""
    many = facts.target.accumulators >= MANY_ACCUMULATORS
    reusing = [
        name for name in reversed(facts.outputs)
        if name != lane_loop and name in main.around and facts.sizes[name] > 1
        and any(a.step(name) == 0 and name not in a.steps for a in main.loads)
    ]  # fmt: skip
    reusing = _best_pair(facts, main, reusing, lane_loop)
    if lane_loop is None or lane_loop not in facts.outputs:
        return {name: tile_of(facts.sizes[name], 4 if many else 2) for name in reusing[:2]}
    blocks = -(-facts.sizes[lane_loop] // width)
    if not reusing:
        most = min(8, _MAX_BODY // facts.sizes[main.terms]) if _are_rows_transposed(facts, main, lane_loop) else 8
        whole = next((t for t in (8, 4, 2) if most >= t <= blocks and blocks % t == 0), 1)
        return {lane_loop: tile_of(blocks, most) if whole == 1 and many else whole}
    is_far = exceeds_caches(facts.stores[0].memory_bytes, facts.target)
    run_cycles = facts.target.machine.levels[-1].run_cycles / facts.iterations(main.loops) if is_far else 0.0
    columns, rows = best_block(blocks, facts.sizes[reusing[0]], many, facts.target, run_cycles)
    tiles = {lane_loop: columns, reusing[0]: rows}
    left = (16 if many else 8) // (columns * rows)
    if len(reusing) > 1 and left > 1:
        tiles[reusing[1]] = tile_of(facts.sizes[reusing[1]], left)
    return tiles


def _best_pair(facts: Facts, main: ReductionGroup, names: list[str], lane_loop: str | None) -> list[str]:
    """First the loop over which the widest load is reused, then the one that adds the most reuse of other loads."""

    def reused(name: str) -> set[int]:
        return {number for number, a in enumerate(main.loads) if name not in a.steps}

    def worth(name: str, without: set[int]) -> tuple[int, int, int]:
        new = reused(name) - without
        wide = sum(main.loads[n].depends_on(lane_loop or "") for n in new)  # vectors, of which each lane may be picked
        return wide, len(new), min(facts.sizes[name], 4)

    if len(names) < 2:
        return names
    first = max(names, key=lambda name: worth(name, set()))
    second = max((n for n in names if n != first), key=lambda name: worth(name, reused(first)))
    return [first, second]


def _reduce_loops(
    schedule: Schedule, facts: Facts, main: ReductionGroup, lane_loop: str | None, width: int, sums: int
) -> None:
    """Unroll short reduce loops; give long ones a longer body, and more accumulators if there are few."""
    unrolled = sums
    for name in reversed(main.loops):
        size = facts.sizes[name]
        blocks = -(-size // width) if name == lane_loop else size
        most = facts.target.accumulators if _are_rows_transposed(facts, main, lane_loop or "") else SMALL_REDUCE
        if name != lane_loop and 1 < blocks <= most and unrolled * blocks <= _MAX_BODY:
            schedule.cut("unroll", name, blocks)
            unrolled *= blocks
            continue
        groups = accumulators(blocks, sums)
        if groups > 1:
            schedule.cut("rfactor", name, groups)
        elif sums >= 8 and blocks % 2 == 0 and blocks > 2 and unrolled * 2 <= _MAX_BODY and name != lane_loop:
            schedule.cut("unroll", name, 2)
        break


def _other_group(schedule: Schedule, facts: Facts, group: ReductionGroup) -> None:
    """Schedule a further reduction of the kernel, over its own loops."""
    name = group.loops[-1]
    width = _width(facts, name)
    is_side_by_side = any(a.step(name) == 1 for a in group.loads) and not _cost(group.loads, name)
    if is_side_by_side and facts.sizes[name] > 1 and width > 1:
        schedule.cut("vectorize", name, width)
        schedule.cut("rfactor", name, accumulators(-(-facts.sizes[name] // width)))

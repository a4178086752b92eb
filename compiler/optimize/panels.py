"""The schedule of a product with a matrix stored in panels: interleaved rows, one panel after another.

The rows of a panel are lanes: there is no horizontal reduction, and the other operand is uniform over the lanes.
Several panels at a large distance are read together, as many as a register tile has room for; nothing has to be packed.
Why: docs/topics/quantized-layouts.md. Tests: tests/compiler/optimize/test_panels.py.
"""

from __future__ import annotations

from math import prod

from kernmill.ir import WORD_BYTES

from .actions import Action, fits
from .analysis import Access, Facts, ReductionGroup, analyze
from .packing import SHORT
from .schedule import Schedule
from .tiles import LEAST_READERS, MANY_ACCUMULATORS, accumulators, best_block, tile_of

__all__ = ["panels_schedule"]

_WIDEST = 2  # vectors of a panel; a wider one is a separate matrix


def panels_schedule(facts: Facts) -> Schedule | None:
    """The schedule without its threads; None where the kernel is something else."""
    main = facts.main
    if main is None or len(main.loops) > 2 or len(facts.groups) > 1 or facts.symbolic:
        return None
    is_long = facts.iterations(main.loops) >= SHORT
    for side in sorted({_side(facts, main, a) for a in main.loads} - {0}) if is_long else ():
        for column in (name for name in facts.outputs if facts.stores[0].step(name) == 1):
            schedule, lanes = Schedule(facts.ast), column
            if facts.sizes[column] > side and facts.sizes[column] % side == 0:  # panels are quotients of the loop
                (lanes,) = schedule.cut("split", column, side)
            cut = analyze(schedule.ast, facts.target)
            for panels in cut.outputs:
                if matrices := _matrices(cut, cut.groups[0], lanes, panels):
                    _tiled(schedule, cut, cut.groups[0], (lanes, panels), matrices)
                    return schedule
    return None


def _side(facts: Facts, main: ReductionGroup, a: Access) -> int:
    """How many rows a panel has, if this steps through one; 0 where it does not."""
    terms, *word = main.loops
    side = (a.step(terms) or 0) // prod(facts.sizes[name] for name in word)
    return side if 0 < side <= _WIDEST * facts.lanes and side % facts.lanes == 0 else 0


def _tiled(
    schedule: Schedule, facts: Facts, main: ReductionGroup, loops: tuple[str, str], matrices: list[Access]
) -> None:
    """`loops`: over the rows of a panel, and over panels."""
    (lanes, panels), (terms, *word), sizes = loops, main.loops, facts.sizes
    vectors, has_room = sizes[lanes] // facts.lanes, facts.target.accumulators >= MANY_ACCUMULATORS
    rows = [name for name in facts.outputs if name not in loops and sizes[name] > 1]
    across, high = facts.target.read_streams, 1
    if rows:
        across, high = best_block(sizes[panels] * vectors, sizes[rows[-1]], has_room, facts.target)
    together = tile_of(sizes[panels], max(1, across // (vectors * len(matrices))))
    for name in word:
        schedule.cut("unroll", name, sizes[name])
    schedule.cut("vectorize", lanes, facts.lanes)
    schedule.cut("unroll", lanes, vectors)
    schedule.cut("interleave", panels, together)
    if rows:
        schedule.cut("unroll", rows[-1], high)
    schedule.cut("rfactor", terms, accumulators(sizes[terms], together * vectors * len(matrices) * high))
    tiles, outer = -(-facts.iterations(rows) // high), terms
    panel_bytes = together * sizes[lanes] * facts.iterations([terms, *word]) * sum(a.size_bytes for a in matrices)
    count = -(-sizes[terms] * 3 * facts.target.l2_bytes // (4 * panel_bytes))
    is_cut = tiles > 1 and count < sizes[terms] and fits(schedule.ast, Action("accumulate", (terms, str(count))))
    if is_cut:
        outer = schedule.add("accumulate", terms, count)[terms]
    schedule.order((panels, *([terms] if is_cut else []), *rows))
    copied = [copy for name in (*word, panels, lanes) for copy in schedule.unrolled_loops(name)]
    for a in matrices if tiles >= LEAST_READERS and not has_room else ():
        if a.size_bytes < WORD_BYTES:
            schedule.add("stage", a.slot, outer, *copied)
    if tiles == 1 and not facts.target.has_hardware_prefetch:
        schedule.add("prefetch", facts.target.machine.prefetch_bytes)  # it ignores data that fit the caches


def _matrices(facts: Facts, main: ReductionGroup, lanes: str, panels: str) -> list[Access]:
    """Return the loads of a reduction that iterate over panels: one loop over their rows, the other over panels.
    None if another load depends on these loops, or the rows do not form a panel."""
    size = facts.sizes[lanes]
    if size % facts.lanes or size > _WIDEST * facts.lanes or lanes == panels:
        return []
    terms, *word_loops = main.loops
    word = facts.iterations(word_loops)
    steps = {lanes: word, terms: size * word, panels: size * word * facts.sizes[terms]} | dict.fromkeys(word_loops, 1)
    found = [a for a in main.loads if lanes in a.steps or panels in a.steps]
    return found if all(a.steps == steps and not a.is_gated for a in found) and len(found) < len(main.loads) else []

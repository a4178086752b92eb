"""The schedule of reductions over weight blocks: short sums of products of bytes, scaled and added, for quantized
weights.

Lanes are outputs whose words are contiguous in one operand, so there is no horizontal reduction. The short sum is fully
unrolled and becomes a chain of dot products (lower/find_dots.py); loops over blocks remain if they do not fit the body.
The other operand is uniform over the lanes; the outputs that it depends on are a register tile. Why:
docs/topics/quantized-products.md. Tests: tests/compiler/optimize/test_blocks.py.
"""

from __future__ import annotations

from math import gcd

from kernmill.ir import LINE_BYTES, WORD_BYTES, Ops, UOp, closed_ranges, dtypes

from ..kernel.facts import names_of
from ..lower.find_dots import is_multiplied
from .analysis import Access, Facts, analyze, even_part
from .schedule import Schedule
from .staging import unpacked
from .tiles import LEAST_READERS, MANY_ACCUMULATORS, MOST_ROWS, SMALL_ROWS, accumulators

__all__ = ["block_schedule", "is_nested"]

_DOTS = 16  # of them in one body
_WIDE = 3  # most vectors of such a tile: registers contain its sums twice


def is_nested(total: UOp) -> bool:
    """True if the reduction's operand contains another reduction."""
    loops = set(closed_ranges(total))
    return any(n.op is Ops.REDUCE and not loops.isdisjoint(n.ranges) for n in total.src[0].toposort())


def block_schedule(facts: Facts) -> Schedule | None:
    """The schedule without its threads; None where the kernel is something else."""
    nested, short = _sums(facts.ast)
    has_dots = is_multiplied(dtypes.uint8, dtypes.int8, facts.target)
    if not has_dots or len(facts.stores) != 1 or not nested or len(nested) != len(short) or facts.symbolic:
        return None
    lanes = facts.target.vector_bytes // WORD_BYTES
    for column in (name for name in facts.sizes if name in facts.outputs and facts.sizes[name] % lanes == 0):
        schedule = Schedule(facts.ast)
        (own,) = schedule.cut("vectorize", column, lanes)
        wide = analyze(schedule.ast, facts.target)  # adjacent elements may be a quotient or remainder of a loop
        matrices = [m for total in _sums(schedule.ast)[1] if (m := _matrix(total, wide, own)) is not None]
        if wide.stores[0].step(own) == 1 and len(matrices) == len(short):
            _tiled(schedule, wide, matrices, (column, own))
            return schedule
    return None


def _sums(ast: UOp) -> tuple[list[UOp], list[UOp]]:
    """Return nested reductions, then innermost ones."""
    sums = [node for node in ast.toposort() if node.op is Ops.REDUCE]
    nested = [total for total in sums if is_nested(total)]
    return nested, [total for total in sums if total not in nested]


def _tiled(schedule: Schedule, facts: Facts, matrices: list[UOp], columns: tuple[str, str]) -> None:
    sizes, (nested, short), (column, lanes) = facts.sizes, _sums(schedule.ast), columns
    left = [name for name in schedule.loops if sizes[name] > 1 and name != lanes]
    columns_left = [name for name in left if any(name in names_of(m.ranges) for m in matrices)]
    rows = [name for name in left if name not in columns_left]
    copied = dict.fromkeys(name for total in short for name in names_of(closed_ranges(total)))
    if (
        len(matrices) == 1
        and columns_left
        and rows
        and sizes[rows[-1]] > MOST_ROWS
        and facts.target.accumulators >= MANY_ACCUMULATORS
    ):
        _many_rows(schedule, facts, matrices[0], (columns_left, rows, [*copied]), lanes)
        return
    unrolled = max(facts.iterations(names_of(closed_ranges(total))) for total in short) // WORD_BYTES
    indices = [n.src[0] for m in matrices for n in m.toposort() if n.op is Ops.LOAD]
    around = dict.fromkeys(name for total in nested for name in names_of(closed_ranges(total)[1:]))
    words = _words(facts, matrices, lanes)
    steps = {name: max((a.step(name) or 0 for a in words), default=0) for name in around}
    shared = {name: sum(name in names_of(index.ranges) for index in indices) for name in around}
    # loops shared by most loads first, then adjacent data
    for name in sorted(around, key=lambda n: (shared[n], steps[n])):
        if unrolled * sizes[name] <= _DOTS:
            copied[name] = None
            unrolled *= sizes[name]
    for name in copied:
        schedule.add("unroll", name, sizes[name])
    vectors = 1 if rows else gcd(sizes.get(column, 1), max(1, LINE_BYTES // facts.target.vector_bytes))
    schedule.cut("unroll", column, vectors)  # else half of each cache line is read in a separate pass
    if rows:
        schedule.cut("unroll", rows[-1], even_part(sizes[rows[-1]], MOST_ROWS))
        schedule.order((*columns_left, *rows))
    has_room = not rows or facts.target.accumulators >= MANY_ACCUMULATORS  # values loaded early occupy a register
    remaining = [name for name in around if name not in copied]
    if remaining and not rows and unrolled * 2 <= _DOTS and facts.target.accumulators >= MANY_ACCUMULATORS:
        schedule.cut("rfactor", remaining[-1], accumulators(sizes[remaining[-1]]))
    _accumulate_blocks(schedule, nested, words)
    if facts.target.has_hardware_prefetch and has_room and _are_sequential(words, remaining):
        schedule.add("inorder")  # it ignores small buffers, like prefetches
    elif not rows:
        most = facts.target.read_streams // len(matrices) // vectors
        for name in sorted(columns_left, key=lambda n: sizes[n])[-1:] if most else ():
            count = sizes[name] // (vectors if name == column else 1)
            schedule.cut("interleave", name, gcd(count, most if count != most else most // 2))  # for 2 threads
        schedule.add("prefetch", facts.target.machine.prefetch_bytes)


def _accumulate_blocks(schedule: Schedule, nested: list[UOp], words: list[Access]) -> None:
    """If blocks of several outputs alternate in memory, keep partial sums in the output buffer, provided a loop is
    left for threads."""
    for name in dict.fromkeys(names_of(total.src[1:2])[0] for total in nested):
        block = min((a.step(name) or 0 for a in words), default=0)
        inside = [loop for loop in schedule.loops if all(0 < (a.step(loop) or 0) < block for a in words)]
        around = [loop for loop in schedule.loops if loop not in inside]
        if inside and around and schedule.try_add("accumulate", name, 1):
            schedule.order((*around, name, *inside))
            schedule.try_add("factor")  # a scale of the whole block


def _words(facts: Facts, matrices: list[UOp], lanes: str) -> list[Access]:
    """Return the loads of the matrices that read contiguous words."""
    order = {n for m in matrices for n in m.toposort()}
    return [a for a in facts.loads if a.node in order and not _looks_up(a, lanes) and a.step(lanes) == WORD_BYTES]


def _are_sequential(words: list[Access], loops: list[str]) -> bool:
    """True if these loops read the words of each matrix sequentially, not as interleaved slices."""
    return len({(a.memory, *(a.step(name) for name in loops)) for a in words}) == len({a.memory for a in words})


def _many_rows(
    schedule: Schedule, facts: Facts, matrix: UOp, loops: tuple[list[str], list[str], list[str]], lanes: str
) -> None:
    """Compute the short sums of one block for a tile of rows at a time. If enough tiles reuse them, unpack the
    quants and scales of all blocks once: values that depend on the matrix alone are staged."""
    (columns, rows, words), sizes = loops, facts.sizes
    blocks = names_of(closed_ranges(_sums(schedule.ast)[0][0]))
    order = set(matrix.toposort())
    reads = [a for a in facts.loads if a.node in order and a.depends_on(lanes) and not _looks_up(a, lanes)]
    slot, indices = reads[0].memory.arg[0], [a.node.src[0] for a in reads]
    panel = facts.iterations([*blocks, *words]) * (facts.target.vector_bytes // WORD_BYTES)
    room = facts.target.l2_bytes // 2 // panel
    wide = even_part(sizes[columns[-1]], max(1, min(_WIDE, room)))
    tile = even_part(sizes[rows[-1]], SMALL_ROWS)
    inner = [copy for name in words for copy in schedule.cut("unroll", name, sizes[name])]
    side = schedule.cut("unroll", columns[-1], wide)
    schedule.cut("unroll", rows[-1], tile)
    schedule.order((*columns, *rows))
    if facts.iterations(rows) < LEAST_READERS * tile or not room:
        return
    codes = [name for name in blocks if name in names_of(matrix.ranges)]
    copies = schedule.add("stage", slot, *codes, *side, *inner[:-1], lanes, inner[-1])
    code_loops = [name for name in codes if all(name in names_of(index.ranges) for index in indices)]
    for name in [n for n in codes if n not in code_loops]:  # a byte is read once for all its quants
        schedule.cut("unroll", copies[name], sizes[name])
    loads = [n for n in schedule.ast.toposort() if n.op is Ops.LOAD and n.src[0].src[0].op is Ops.PARAM]
    scales = [names_of(u.ranges) for u in unpacked(schedule.ast, [n for n in loads if n.src[0].src[0].arg[0] == slot])]
    own = dict.fromkeys(tuple(n for n in blocks if n in names) for names in scales)
    for found in own:
        if found:
            schedule.add("stage", slot, *found, *side, lanes)
    for name in code_loops[:1]:
        schedule.add("prefetch", wide * (reads[0].step(columns[-1]) or 0), copies[name])  # the next packed panel


def _matrix(total: UOp, facts: Facts, lanes: str) -> UOp | None:
    """Return the operand of a byte product whose words are contiguous along the lanes, if the other operand is
    uniform."""
    value = total.src[0]
    if total.arg != (Ops.ADD, 1) or total.dtype is not dtypes.int32 or value.op is not Ops.MUL:
        return None
    if not all(s.op is Ops.CAST and s.src[0].dtype.size_bytes == 1 and not s.src[0].dtype.is_bool for s in value.src):
        return None
    for matrix, other in (value.src, value.src[::-1]):
        order = set(matrix.toposort())
        steps = [a.step(lanes) for a in facts.loads if a.node in order and lanes in a.steps and not _looks_up(a, lanes)]
        is_plain = all(len(n.src[0].src) == 2 for n in order if n.op is Ops.LOAD)
        if is_plain and steps and lanes not in names_of(other.ranges) and {*steps} <= {1, WORD_BYTES}:
            return matrix
    return None


def _looks_up(a: Access, lanes: str) -> bool:
    """True if a load's index is itself loaded, for each lane: a table lookup. A number that all lanes share, such as
    that of an expert, is where the words begin."""
    return any(n.op is Ops.LOAD and lanes in names_of(n.ranges) for n in a.node.src[0].src[1].toposort())

"""The optimizer's actions: small, printable changes of a kernel's loops. A schedule is a list of them.

    split i1 64        i1 becomes an outer loop over blocks of 64 and the loop i1.s inside
    unroll i0 8        the inner 8 iterations are unrolled: a register tile (of a reduce loop: a longer body)
    interleave i0 4    4 sub-ranges of the loop are unrolled together: each reads its own access stream
    vectorize i1 16    the inner 16 iterations become the lanes of vectors (of a reduce loop: 16 partial results)
    rfactor k0 4       the inner 4 iterations of a reduce loop get separate accumulators
    thread i0          the loop is divided into chunks for the threads of the device
    grid i0 i1         the loops are distributed over the work-groups of a GPU; without groups over work-items
    local i1 16        the inner 16 iterations are work-items of a work-group (of a row buffer: they fill it together)
    share k0 64        64 work-items compute partial sums, which are combined in shared memory
    order i1 i0        the order of the output loops, outermost first
    move_inner k0      k0 becomes the innermost loop of its reduction
    accumulate k0 256  a reduction accumulates in the output buffer: k0 becomes an output loop over blocks of
                       256 iterations; so do further loops and counts: k1 64 ..
    factor             hoisted scale: factors that are invariant in the loops of a reduction are multiplied after it
    scatter k0 i0      terms of a reduction over k0 that each belong to one index of i0 are added there: k0 becomes a
                       sequential output loop; i0' initializes the output before
    tensorize i0 i1    the results of a reduction over these loops are computed as a tile in memory, for a matrix unit
    pack_words t0_0    each lane of the row that t0_0 writes is a word of adjacent values, as a matrix unit reads them
    stage 1 k0 i1.v    loads from buffer 1 over these loops are first packed into a kernel-local buffer, which is shared
                       by a work-group if one of the loops is local
    bias 2 i0          bytes of buffer 2 are offset by 128 to change their signedness; the correction depends on i0, is
                       computed once for each i0, and subtracted
    buffer_in_output t0_0   the row buffer that t0_0 writes is in the output, not in a kernel-local buffer
    stream             the stores of the kernel are non-temporal
    prefetchw          cache lines of results are prefetched during the reductions that are stored there
    prefetch 4096      loads from buffers that exceed the caches are prefetched at this distance in bytes
    prefetch 4096 k1 L2   ... only loads inside that loop (one of several passes), and only into that cache level
    inorder            loads from such buffers are sequential, in address order, without prefetches

Where an amount does not divide the size, the last block is masked. Every action preserves the meaning of the kernel;
heuristic.py or a search decides which ones make it fast.
Tests: tests/compiler/optimize/test_actions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from kernmill.ir import (
    WORD_BYTES,
    AxisKind,
    CompileError,
    Ops,
    Target,
    UOp,
    closed_ranges,
    const,
    dtypes,
    from_linear,
    linear,
    make_range,
    memory_of,
    rebuilt,
    simplify,
    substitute,
    with_sources,
)

from ..kernel.facts import gated, loops_of, neutral_element, order_of, reordered, slot_of
from ..lower.find_dots import BYTES
from ..lower.lower_reduces import without_mask
from . import proposals as propose
from .bias import biased
from .factors import factored
from .scatter import scattered
from .staging import in_output, staged, unpacked

__all__ = [
    "ACTION_KINDS",
    "CUTS",
    "Action",
    "ActionKind",
    "apply_action",
    "apply_actions",
    "find_loop",
    "fits",
    "parse_schedule",
    "show_schedule",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a schedule; `args` are loop names and amounts as written."""

    verb: str
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.verb, *self.args))


# a kernel, and the new loops by the name of the loop that they replace
Acted: TypeAlias = "tuple[UOp, Mapping[str, str]]"


def show_schedule(actions: Sequence[Action]) -> str:
    """A schedule as text, one action a line."""
    return "\n".join(str(action) for action in actions)


_OLD_NAMES: Final = {"inner": "move_inner", "inplace": "buffer_in_output", "vnni": "pack_words"}  # until version 0.3


def parse_schedule(text: str, name: str = "") -> list[Action]:
    """Actions from text: one a line or separated by semicolons; `#` starts a comment. `name`: of the kernel, if known.

    Raises:
        CompileError: an unknown action. Names of version 0.1 are accepted until 0.3: schedules are stored on disk.
    """
    actions: list[Action] = []
    for line in text.replace(";", "\n").splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        words[0] = _OLD_NAMES.get(words[0], words[0])
        if words[0] not in ACTION_KINDS:
            of = f" of {name}" if name else ""
            raise CompileError(f"schedule{of}: {words[0]!r} is not an action. Actions: {', '.join(ACTION_KINDS)}.")
        actions.append(Action(words[0], tuple(words[1:])))
    return actions


def apply_actions(ast: UOp, actions: Sequence[Action]) -> UOp:
    """The kernel with the actions applied in order.

    Raises:
        CompileError: an action that does not fit this kernel; the message names it and the loops there are.
    """
    for action in actions:
        ast, _ = apply_action(ast, action)
    return ast


def apply_action(ast: UOp, action: Action) -> Acted:
    """The kernel with one action applied, and the loops that it made.

    Raises:
        CompileError: as above.
    """
    loops = [arg for arg in action.args if not arg.isdigit()]
    try:
        if len(set(loops)) < len(loops):
            raise ValueError("a loop is named twice")
        done, made = ACTION_KINDS[action.verb].act(ast, action.args)
        _check_memory(done)
    except IndexError:
        raise CompileError(f"schedule of {ast.arg.name}: {action}: a loop or an amount is missing.") from None
    except (ValueError, KeyError) as error:
        names = ", ".join(f"{name}({loop.src[0].arg})" for name, loop in loops_of(ast).items())
        raise CompileError(
            f"schedule of {ast.arg.name}: {action} does not fit: {error}. Its loops are {names}."
        ) from None
    return done.replace(arg=replace(done.arg, actions=(*done.arg.actions, str(action)))), made


def fits(ast: UOp, action: Action) -> bool:
    """True if the action can be applied to the kernel."""
    try:
        apply_actions(ast, [action])
    except CompileError:
        return False
    return True


_SPREAD: Final = (AxisKind.THREAD, AxisKind.GLOBAL, AxisKind.LOCAL)  # whose iterations are in several hands


def _check_memory(ast: UOp) -> None:
    """Check that a value has the lanes of one loop only, and that no kernel-local buffer is needed per lane. A buffer
    shared by a work-group must not depend on the work-item."""
    nodes = ast.toposort()
    _check_filled_once(nodes, order_of(ast))
    facts = dict.fromkeys((node.ranges, closed_ranges(node), node.op is Ops.LOCAL) for node in nodes)
    for around, closed, is_memory in facts:
        own, filled = (any(r.arg[1] == AxisKind.LOCAL for r in loops) for loops in (around, closed))
        if own and filled:
            raise ValueError("each work-item would need a separate buffer; name the loop of the work-items in `stage`")
        lanes = sum(r.arg[1] == AxisKind.VECTOR for r in around)
        if lanes > 1:
            raise ValueError("a value would have the lanes of two loops")
        if lanes and is_memory:
            raise ValueError("each lane would need a separate buffer; name the loop of the lanes in `stage`")


def _check_filled_once(nodes: Sequence[UOp], order: Sequence[str]) -> None:
    """Check that each output element is written once: outside all loops that its index does not depend on."""
    for fill in (node for node in nodes if node.op is Ops.AFTER and memory_of(node).op is Ops.PARAM):
        own = {r.arg[0] for r in fill.ranges if r.arg[0] in order}
        is_spread = any(r.op is Ops.RANGE and r.arg[1] in _SPREAD and r not in fill.ranges for r in nodes)
        if is_spread or {*order[: len(own)]} != own:
            raise ValueError("output elements would be written twice")


def find_loop(ast: UOp, name: str) -> UOp:
    """The loop of that name."""
    if (loop := loops_of(ast).get(name)) is None:
        raise ValueError(f"{name!r} is not a loop")
    return loop


_KINDS: Final = {"unroll": AxisKind.UNROLL, "vectorize": AxisKind.VECTOR, "rfactor": AxisKind.RFACTOR,
                 "local": AxisKind.LOCAL, "share": AxisKind.LOCAL, "interleave": AxisKind.UNROLL}  # fmt: skip
_ONLY: Final = {"rfactor": AxisKind.REDUCE, "share": AxisKind.REDUCE, "interleave": AxisKind.LOOP}
# Actions that split a loop, and the suffix of the inner loop's name.
CUTS: Final = {"split": "s", "unroll": "u", "vectorize": "v", "rfactor": "g",
               "local": "l", "share": "l", "interleave": "i"}  # fmt: skip


def _integer_word(word: str) -> int:
    """The number that a word of an action is."""
    if not word.isdecimal():
        raise ValueError(f"{word!r} is not an integer")
    return int(word)


def _cut(verb: str) -> Callable[[UOp, tuple[str, ...]], Acted]:
    def act(ast: UOp, args: tuple[str, ...]) -> Acted:
        name, amount = args[0], _integer_word(args[1])
        loop = find_loop(ast, name)
        is_reduce = loop.arg[1] == AxisKind.REDUCE
        fills = any(node.op is Ops.AFTER and loop in closed_ranges(node) for node in ast.toposort())
        size = loop.src[0]
        # vectorizes unrolled stores as one
        is_copied = fills and verb == "vectorize" and size.is_const and amount >= size.arg
        is_cut = loop.arg[1] in (AxisKind.LOOP, AxisKind.REDUCE, AxisKind.THREAD) or is_copied
        if not is_cut or loop.arg[1] != _ONLY.get(verb, loop.arg[1]):
            raise ValueError(f"{name} is a loop of kind {loop.arg[1]}")
        if verb == "local" and fills:
            ast = _read_back(ast, loop)
        elif verb == "local" and (is_reduce or loop.arg[1] == AxisKind.THREAD):
            raise ValueError(
                f"{name} is a reduction loop or parallelized over threads; `share` spreads a reduction over work-items"
            )
        if verb in ("rfactor", "share") and fills:
            raise ValueError(f"{name} fills a kernel-local buffer and does not reduce")
        if amount < 2:
            raise ValueError("the amount must be 2 or more")
        _check_changes_output(ast, loop)
        if verb == "vectorize" and amount & (amount - 1):
            raise ValueError(f"{amount} lanes: must be a power of two")
        kind = _KINDS.get(verb, AxisKind.REDUCE if is_reduce else AxisKind.LOOP)
        taken = loops_of(ast)
        inner_name = f"{name}.{CUTS[verb]}"
        while inner_name in taken:
            inner_name += CUTS[verb]
        inner = make_range(inner_name, amount, kind)
        return _cut_loop(ast, loop, inner, amount, is_interleaved=verb == "interleave"), {name: inner_name}

    return act


def _read_back(ast: UOp, loop: UOp) -> UOp:
    """Take reductions over a row that is being written from the finished row instead, in loops named like `k0.r`."""
    order = ast.toposort()
    if any(node.op is Ops.CARRY and loop in closed_ranges(node.src[0]) for node in order):
        raise ValueError(f"cannot accumulate: {loop.arg[0]} writes shared elements without a barrier")

    def read_back(_: UOp, new: UOp) -> UOp:
        if new.op is not Ops.REDUCE or loop not in closed_ranges(new):
            return new
        table = {r: make_range(f"{r.arg[0]}.r", r.src[0], AxisKind.REDUCE) for r in closed_ranges(new)}
        for row in order:
            if row.op is Ops.AFTER and closed_ranges(row) == closed_ranges(new):
                index, term = row.src[1].src
                there = index.replace(src=(row, *(substitute(s, table) for s in index.src[1:])))
                table[term] = UOp(Ops.LOAD, term.dtype, (there,))
        return new.replace(src=tuple(substitute(s, table) for s in new.src))

    return rebuilt(ast, read_back)


def _check_changes_output(ast: UOp, loop: UOp) -> None:
    """Check that the loop is not one over which the output accumulates: its iterations must run in order, each once."""
    is_carried = any(node.op is Ops.CARRY and loop in node.src for node in ast.toposort())
    if is_carried or (loop.arg[1] == AxisKind.LOOP and not any(loop in store.src[0].ranges for store in ast.src)):
        raise ValueError(f"the output accumulates over {loop.arg[0]}")


def _cut_loop(ast: UOp, loop: UOp, inner: UOp, amount: int, *, is_interleaved: bool = False) -> UOp:
    size = loop.src[0]
    order = list(order_of(ast))
    name = str(loop.arg[0])
    valid: UOp | None = None
    loops: tuple[UOp, ...] = (inner,)
    index = inner
    blocks = simplify((size + (amount - 1)) // amount)
    if name in order and inner.arg[1] in (AxisKind.LOOP, AxisKind.LOCAL):
        order.insert(order.index(name) + 1, str(inner.arg[0]))
    if int(blocks.bounds[1]) <= 1:  # also of a size that is known when the kernel runs, and may be 0
        valid = None if size.is_const and size.arg == amount else inner < size
        if name in order:
            order.remove(name)
    else:
        outer = make_range(name, blocks, loop.arg[1])
        index, loops = simplify(inner * blocks + outer if is_interleaved else outer * amount + inner), (outer, inner)
        valid = None if size.is_const and size.arg % amount == 0 else index < size
    ast = _replace_loop(ast, loop, index, loops, valid)
    return reordered(ast, order)


def _replace_loop(ast: UOp, loop: UOp, index: UOp, loops: tuple[UOp, ...], valid: UOp | None) -> UOp:
    """Replace the loop variable by `index`; where `valid` is false nothing is written.

    Nothing is read either where a reduce loop or lanes end early. Past the end of an output loop the last iteration is
    computed again and not stored: the address is clamped outside the inner loops. No load there needs a gate, except
    loads of what the kernel writes: another work-item may be writing the last iteration's result.
    """
    order, written = ast.toposort(), {store.src[0].src[0] for store in ast.src}
    is_output = not any(loop in closed_ranges(node) for node in order) and loops[-1].arg[1] != AxisKind.VECTOR
    last = None if valid is None or not is_output else simplify(loop.src[0] - 1)
    if last is not None and len(loops) == 1:  # runs even where the size is 0
        last = simplify(last.alu(Ops.MAX, 0))
    widened = _copied_out(loops[-1])
    done: dict[UOp, UOp] = {}
    for node in order:
        if node is loop:
            done[node] = index if last is None else index.alu(Ops.MIN, last)
            continue
        src = tuple(done[s] for s in node.src)
        closed = closed_ranges(node)
        if loop in closed:
            first = len(node.src) - len(closed)
            position = first + closed.index(loop)
            src = (*src[:position], *loops, *src[position + 1 :])
            if valid is not None and node.op is Ops.REDUCE:
                src = (*(valid.where(v, neutral_element(node.arg[0], v)) for v in src[:first]), *src[first:])
        match node.op:
            case Ops.LOCAL if loop in node.src:
                done[node] = _own_memory(node, loop, loops, widened)
                continue
            case Ops.AFTER if widened and loop in memory_of(node).src:
                src = (*src, loops[-1])
            case Ops.STORE if last is not None and _index_changes(node.src[0], loop):
                memory = node.src[0].src[0]
                # loads at a computed index: clamped
                loads = {n: done[n] for n in node.src[0].toposort() if n.op is Ops.LOAD}
                there = substitute(node.src[0], loads | {loop: index, memory: done[memory]})
                src = (gated(there, valid), *src[1:])
            case Ops.LOAD if last is not None and node.src[0].src[0] in written and _index_changes(node.src[0], loop):
                src = (gated(src[0], valid),)
            case Ops.INDEX if widened and loop in memory_of(node).src:
                is_lane = loops[-1].arg[1] == AxisKind.VECTOR  # lanes are innermost, unrolled instances outside them
                inner = src[1] * widened + loops[-1] if is_lane else src[1] + loops[-1] * memory_of(node).arg[1]
                src = (src[0], inner, *src[2:])
            case Ops.INDEX if last is None and _index_changes(node, loop):
                src = gated(node.replace(src=src), valid).src
        done[node] = with_sources(node, src)
    return simplify(done[ast])


def _copied_out(loop: UOp) -> int:
    """The copies or lanes of a loop that will be gone; 0 for a loop that stays one."""
    return int(loop.src[0].arg) if loop.arg[1] in (AxisKind.UNROLL, AxisKind.VECTOR) else 0


def _own_memory(local: UOp, loop: UOp, loops: tuple[UOp, ...], widened: int) -> UOp:
    """Build the LOCAL for a split loop: separate for its blocks, with room for all unrolled instances or lanes."""
    outer = loops[:-1] if widened else loops
    name, count = local.arg
    src = tuple(new for s in local.src for new in (outer if s is loop else (s,)))
    return local.replace(src=src, arg=(name, count * max(1, widened)))


def _index_changes(index: UOp, loop: UOp) -> bool:
    return any(loop in s.ranges for s in index.src[1:])


def _thread(ast: UOp, args: tuple[str, ...]) -> Acted:
    loop = find_loop(ast, args[0])
    if args[0] not in order_of(ast):
        raise ValueError(f"{args[0]} is not an output loop")
    _check_changes_output(ast, loop)
    if any(r.op is Ops.RANGE and r is not loop and r.arg[1] == AxisKind.THREAD for r in ast.toposort()):
        raise ValueError("another loop is already parallelized over threads")
    ast = substitute(ast, {loop: loop.replace(arg=(loop.arg[0], AxisKind.THREAD))})
    return _outside(ast, args), {}


def _grid(ast: UOp, args: tuple[str, ...]) -> Acted:
    table: dict[UOp, UOp] = {}
    for name in args:
        loop = find_loop(ast, name)
        _check_changes_output(ast, loop)
        if name not in order_of(ast) or not loop.src[0].is_const:
            raise ValueError(f"{name} is not an output loop of a size known before launch")
        if any(loop not in store.ranges for store in ast.src):
            raise ValueError(f"a store is invariant in {name}: every work-item would repeat it")
        table[loop] = loop.replace(arg=(loop.arg[0], AxisKind.GLOBAL))
    return _outside(substitute(ast, table), args), {}


def _outside(ast: UOp, names: Sequence[str]) -> UOp:
    return reordered(ast, (*names, *(name for name in order_of(ast) if name not in names)))


def _order(ast: UOp, args: tuple[str, ...]) -> Acted:
    if sorted(args) != sorted(order_of(ast)):
        raise ValueError(f"the output loops are {' '.join(order_of(ast))}")
    return reordered(ast, args), {}


def _inner(ast: UOp, args: tuple[str, ...]) -> Acted:
    loop = find_loop(ast, args[0])
    sums = [n for n in ast.toposort() if n.op is Ops.REDUCE and loop in closed_ranges(n)]
    table = {n: n.replace(src=(*(s for s in n.src if s is not loop), loop)) for n in sums if n.src[-1] is not loop}
    if not table or len(sums) > 1:
        raise ValueError(f"{args[0]} is not the outer loop of a single reduction")
    return substitute(ast, table), {}


def _accumulate(ast: UOp, args: tuple[str, ...]) -> Acted:
    cuts = list(zip(args[::2], map(int, args[1::2]), strict=True))
    loops: dict[UOp, UOp] = {}  # a loop over blocks of the reduction, and the same as an output loop
    made: dict[str, str] = {}
    for name, count in cuts:
        size = find_loop(ast, name).src[0]
        if not size.is_const or size.arg <= count:
            raise ValueError(f"{name} has one block only")
        if count > 1:
            ast, inner = _cut("split")(ast, (name, str(count)))
            made |= inner
    for name, _ in cuts:
        outer = find_loop(ast, name)
        if outer.arg[1] != AxisKind.REDUCE:
            raise ValueError(f"{name} is a loop of kind {outer.arg[1]}")
        loops[outer] = outer.replace(arg=(name, AxisKind.LOOP))
    sums = [node for node in ast.toposort() if not loops.keys().isdisjoint(closed_ranges(node))]
    store = ast.src[0]
    if len(ast.src) > 1 or len(sums) > 1 or sums[0].op is not Ops.REDUCE or sums[0].dtype is not store.src[1].dtype:
        raise ValueError("the kernel must have one reduction and one output of its dtype")
    (total,) = sums
    is_sum = total.arg == (Ops.ADD, 1) and not total.dtype.is_bool and loops.keys() <= set(closed_ranges(total))
    if not is_sum or total.ranges != store.ranges:
        raise ValueError("the reduction must have one value per output element")
    if any(node.op is Ops.LOAD and node.src[0].src[0] is store.src[0].src[0] for node in ast.toposort()):
        raise ValueError("the kernel reads the old values of its output")
    rest = tuple(r for r in closed_ranges(total) if r not in loops)
    part = substitute(total.src[0], loops)
    part = UOp(Ops.REDUCE, total.dtype, (part, *rest), total.arg) if rest else part
    is_later, is_last = const(dtypes.bool, False), const(dtypes.bool, True)
    for block in loops.values():
        is_later, is_last = is_later | (block > 0), is_last & block.eq(block.src[0].arg - 1)
    value = UOp(Ops.LOAD, total.dtype, (gated(store.src[0], simplify(is_later)),)) + part
    if total is not store.src[1]:
        value = is_last.where(substitute(store.src[1], {total: value}), value)
    new = UOp(Ops.STORE, dtypes.void, (store.src[0], value), store.arg)
    return simplify(reordered(ast.replace(src=(new,)), (*order_of(ast), *(name for name, _ in cuts)))), made


def _scatter(ast: UOp, args: tuple[str, ...]) -> Acted:
    terms, output = (find_loop(ast, name) for name in args[:2])
    name = args[1] + "'" * _marks(ast, [args[1]])
    return scattered(ast, terms, output, name), {args[1]: name}


def _stage(ast: UOp, args: tuple[str, ...]) -> Acted:
    slot, names = _integer_word(args[0]), args[1:]
    if any(slot_of(store) == slot for store in ast.src):
        raise ValueError(f"the kernel writes buffer {slot}")
    loads = [n for n in ast.toposort() if n.op is Ops.LOAD and slot_of(n) == slot]
    is_tiled = bool(_count_local(ast, "tile"))  # a matrix unit reads converted values
    values = unpacked(ast, loads) if is_tiled or any(n.dtype in BYTES for n in loads) else loads
    values = [n for n in values if all(any(r.arg[0] == name for r in n.ranges) for name in names)]
    if not values:
        raise ValueError(f"nothing is loaded from buffer {slot} over {', '.join(names)}")
    table: dict[UOp, UOp] = {}
    made: dict[str, str] = {}
    first = _marks(ast, names)
    taken = _count_local(ast, f"stage{slot}_")
    for number, value in enumerate(values):
        loops = [next(r for r in value.ranges if r.arg[0] == name) for name in names]
        name = f"stage{slot}_{taken + number}"
        table[value], copies = staged(value, loops, name, "'" * (first + number), has_gaps=not is_tiled)
        made |= copies
    return simplify(substitute(ast, table)), made


def _count_local(ast: UOp, start: str) -> int:
    """Count the LOCALs whose names begin like this: two with equal name, size and loops would be one node."""
    return sum(node.op is Ops.LOCAL and str(node.arg[0]).startswith(start) for node in ast.toposort())


def _bias(ast: UOp, args: tuple[str, ...]) -> Acted:
    sums = [n for n in ast.toposort() if n.op is Ops.REDUCE]
    if len(sums) != 1:
        raise ValueError("the kernel must have exactly one reduction")
    mark = "'" * _marks(ast, [str(r.arg[0]) for r in sums[0].toposort() if r.op is Ops.RANGE])
    total, made = biased(sums[0], _integer_word(args[0]), [find_loop(ast, name) for name in args[1:]], mark)
    return simplify(substitute(ast, {sums[0]: total})), made


def _pack_words(ast: UOp, args: tuple[str, ...]) -> Acted:
    loop = find_loop(ast, args[0])
    row = next((n for n in ast.toposort() if n.op is Ops.AFTER and loop in closed_ranges(n)), None)
    count = WORD_BYTES // row.dtype.size_bytes if row is not None and row.src[0].op is Ops.LOCAL else 0
    if row is None or count < 2 or row.src[0].arg[1] % count:
        raise ValueError(f"{loop.arg[0]} does not write a row of narrow values that fill 32-bit words")

    def moved(node: UOp, new: UOp) -> UOp:
        if new.op is not Ops.INDEX or node.src[0] not in (row, row.src[0]):
            return new
        terms, offset = linear(new.src[1])
        lane = next((r for r in terms if r.op is Ops.RANGE and r.arg[1] == AxisKind.VECTOR), None)
        if lane is None:
            raise ValueError(f"the row of {loop.arg[0]} has no lanes yet")
        lanes = int(lane.src[0].arg)
        index = from_linear({atom: k for atom, k in terms.items() if atom is not lane}, offset, dtypes.index) // lanes
        return new.replace(src=(new.src[0], index // count * (count * lanes) + lane * count + index % count))

    return simplify(rebuilt(ast, moved)), {}


def _tensorize(ast: UOp, args: tuple[str, ...]) -> Acted:
    loops = [find_loop(ast, name) for name in args]
    sums = [node for node in ast.toposort() if node.op is Ops.REDUCE and closed_ranges(node)]
    sums = [node for node in sums if all(loop in node.ranges for loop in loops)]
    if len(loops) != 2 or len(sums) != 1 or sums[0].arg[1] != 1:
        raise ValueError("a tile must be one reduction over two loops")
    (total,) = sums
    bare = total.replace(src=(without_mask(total.src[0]), *closed_ranges(total)))
    value, made = staged(bare, loops, f"tile{_count_local(ast, 'tile')}", "'" * _marks(ast, args))
    return simplify(substitute(ast, {total: value})), made


def _marks(ast: UOp, names: Sequence[str]) -> int:
    """How many marks a loop needs behind one of these names to be a new one."""
    taken = loops_of(ast)
    return 1 + max((len(name) - len(name.rstrip("'")) for name in taken if name.rstrip("'") in names), default=0)


def _share(ast: UOp, args: tuple[str, ...]) -> Acted:
    amount = _integer_word(args[1])
    if amount & (amount - 1):
        raise ValueError(f"{amount} partial sums: must be a power of two")
    before = ast.toposort()
    ast, made = _cut("share")(ast, args)
    inner = find_loop(ast, made[args[0]])
    mark = "'" * _marks(ast, [str(n.arg[0]).rstrip("'") for n in before if n.op is Ops.RANGE])
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        new = with_sources(node, tuple(done[s] for s in node.src))
        done[node] = _folded(new, inner, f"share{len(done)}", mark) if inner in closed_ranges(new) else new
    return simplify(done[ast]), made


_AT_ONCE: Final = 16  # partial sums that one work-item combines


def _folded(node: UOp, inner: UOp, name: str, mark: str) -> UOp:
    """Distribute the loop `inner` of a reduction over work-items, and combine their partial sums stepwise in shared
    memory."""
    op = node.arg[0]
    rest = tuple(loop for loop in closed_ranges(node) if loop is not inner)
    part = UOp(Ops.REDUCE, node.dtype, (node.src[0], *rest), node.arg) if rest else node.src[0]
    while True:
        own = [r for r in part.ranges if r.arg[1] in (AxisKind.LOCAL, AxisKind.VECTOR) and r is not inner]
        own.sort(key=lambda r: (r.arg[1] == AxisKind.VECTOR, r.arg[0]))  # lanes are contiguous
        stored, _ = staged(part, [inner, *own], name, mark)
        count, mark = int(inner.src[0].arg), f"{mark}'"
        base = str(inner.arg[0]).rstrip("'")
        several = make_range(f"{base}f{mark}", min(count, _AT_ONCE), AxisKind.REDUCE)
        if count <= _AT_ONCE:
            return UOp(Ops.REDUCE, node.dtype, (substitute(stored, {inner: several}), several), (op, 1))
        left = make_range(f"{base}{mark}", count // _AT_ONCE, AxisKind.LOCAL)
        value = substitute(stored, {inner: several * (count // _AT_ONCE) + left})
        part, inner, name = UOp(Ops.REDUCE, node.dtype, (value, several), (op, 1)), left, f"{name}'"


def _stream(ast: UOp, args: tuple[str, ...]) -> Acted:
    if any(store.arg == "prefetchw" for store in ast.src):
        raise ValueError("the stores already have `prefetchw`, which keeps them in the caches")
    return ast.replace(src=tuple(store.replace(arg="nt") for store in ast.src)), {}


def _prefetchw(ast: UOp, args: tuple[str, ...]) -> Acted:
    if any(store.arg is not None for store in ast.src):
        raise ValueError("the stores are non-temporal, or already have `prefetchw`")
    return ast.replace(src=tuple(store.replace(arg="prefetchw") for store in ast.src)), {}


_LARGE = 1 << 18  # bytes; smaller buffers stay in the caches by themselves


def _prefetch(ast: UOp, args: tuple[str, ...]) -> Acted:
    cache = 2 if args[-1] == "L2" else 1
    inside = {find_loop(ast, name) for name in args[1 : len(args) + 1 - cache]}
    return _large_loads(ast, (_integer_word(args[0]), cache), inside), {}


def _inorder(ast: UOp, args: tuple[str, ...]) -> Acted:
    return _large_loads(ast, "inorder", set()), {}


def _large_loads(ast: UOp, how: object, inside: set[UOp]) -> UOp:
    """The kernel whose loads of large buffers inside some loops are done so."""
    table: dict[UOp, UOp] = {}
    for node in ast.toposort():
        memory = node.src[0].src[0] if node.op is Ops.LOAD else node
        is_large = memory.op is Ops.PARAM and memory.arg[1] * memory.dtype.size_bytes >= _LARGE
        if node.op is Ops.LOAD and is_large and inside <= node.ranges:
            table[node] = node.replace(src=tuple(substitute(s, table) for s in node.src), arg=how)
    return substitute(ast, table)


@dataclass(frozen=True, slots=True)
class ActionKind:
    """An action kind: its function, the arguments that a search may try, and how arguments are refitted.

    `rank`: the sort key of a schedule. A split comes before actions that name the loops it makes, and after actions
    that need whole loops.
    """

    act: Callable[[UOp, tuple[str, ...]], Acted]
    proposals: Callable[[UOp, Target], Iterable[tuple[str, ...]]]
    rank: int = 0
    fit: Callable[[UOp, tuple[str, ...]], tuple[str, ...] | None] = lambda ast, args: args  # None: drop the action


ACTION_KINDS: Final[dict[str, ActionKind]] = {
    "split": ActionKind(_cut("split"), propose.splits),
    "unroll": ActionKind(_cut("unroll"), propose.unrolls),
    "interleave": ActionKind(_cut("interleave"), propose.parts),
    "vectorize": ActionKind(_cut("vectorize"), propose.vectors),
    "rfactor": ActionKind(_cut("rfactor"), propose.rfactors),
    "local": ActionKind(_cut("local"), propose.items),
    "share": ActionKind(_share, propose.items),
    "buffer_in_output": ActionKind(lambda ast, args: (in_output(ast, find_loop(ast, args[0])), {}), propose.rows, -1),
    "accumulate": ActionKind(_accumulate, propose.accumulations, 1),
    "factor": ActionKind(lambda ast, args: (factored(ast), {}), propose.nothing, 2),
    "scatter": ActionKind(_scatter, propose.scatters, 1),
    "move_inner": ActionKind(_inner, propose.inner),
    "order": ActionKind(_order, propose.orders, 2, propose.fit_order),
    "tensorize": ActionKind(_tensorize, propose.tiles, 2),
    "pack_words": ActionKind(_pack_words, propose.rows, 2),
    "bias": ActionKind(_bias, propose.biases, -1),
    "stage": ActionKind(_stage, propose.stages, 3, propose.fit_stage),
    "stream": ActionKind(_stream, propose.streams, 4),
    "prefetchw": ActionKind(_prefetchw, propose.once, 4),
    "prefetch": ActionKind(_prefetch, propose.prefetches, 4),
    "inorder": ActionKind(_inorder, propose.in_order, 4),
    "grid": ActionKind(_grid, propose.grids, 5, propose.fit_grid),
    "thread": ActionKind(_thread, propose.threads, 5, propose.fit_thread),
}

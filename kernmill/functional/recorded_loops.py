"""A loop in a recording: its body as a graph over placeholders, recorded once, and the loop that is its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from kernmill.ir import (
    GradientError,
    KernmillError,
    OpGroup,
    Ops,
    ShapeError,
    UOp,
    apart,
    dtypes,
    numel,
    reshape,
    show_shape,
    static,
)
from kernmill.runtime import (
    Buffer,
    BufferSlot,
    LoopOf,
    LoopWhile,
    allocate_buffer,
    buffer_node,
    get_device,
    recording_apart,
    replay_of,
    run_on_host,
)

from ..autograd import gradient as gradient_of
from ..lazy import grad_state, tracing
from ..methods.random import _generators
from ..tensor import Tensor
from .custom import sealed
from .rewriting import Rewriter, placeholder
from .trees import pair_of, parts_of, replaced, same_form

__all__ = ["recorded_scan", "recorded_while"]

_NO_VALUES = (
    "{}: the body reads values (numpy(), item(), a comparison in an if), and in a captured function it is called once, "
    "before there are any. Use where()."
)


class _Rows(NamedTuple):
    """Values in a buffer: those of the first round at `first`, those of the next `step` values later."""

    buffer: Buffer
    first: int = 0
    step: int = 0


@dataclass(slots=True)
class _LoopBody:
    """One round as a graph: what it reads from placeholders, what it writes, and the carries after it. `outer`: nodes
    that it reads from outside, each with its values in memory."""

    rows: list[UOp]
    carries: list[UOp]
    outs: list[UOp]
    after: list[UOp]
    outer: dict[UOp, Buffer] = field(default_factory=dict[UOp, Buffer])


# --- tracing ---------------------------------------------------------------------------------------------------------
def _placeholders(call: str, tensors: Sequence[Tensor], *, is_row: bool = False) -> list[Tensor]:
    text = _NO_VALUES.format(call)
    nodes = [placeholder(t.dtype, t.uop.shape[is_row:], t.device, text) for t in tensors]
    return [Tensor._make(node, t._device, t._requires_grad) for node, t in zip(nodes, tensors, strict=True)]


def _traced(call: str, function: Callable[[], Any]) -> Any:
    """The result of a function of placeholders.

    Raises:
        KernmillError: it draws random numbers, which would be the same in each round.
    """
    before = [(g.pending, g.state.uop) for g in _generators.values()]
    with tracing():
        made = function()
    if [(g.pending, g.state.uop) for g in _generators.values()] != before:
        raise KernmillError(
            f"{call}: the body draws random numbers, and in a captured function it is called once for all rounds. Draw "
            "them before the loop, and give them as xs."
        )
    return made


def _outer(roots: Sequence[UOp], inner: Sequence[UOp]) -> dict[UOp, Buffer]:
    """Return what the body reads from outside, in memory: below movements, and without constants."""
    depending, found = set(inner), dict[UOp, None]()
    for root in roots:
        for node in root.toposort(stop=lambda u: u in depending or u.storage is not None):
            if node in depending:
                continue
            if not depending.isdisjoint(node.src):
                depending.add(node)
                found.update(dict.fromkeys(node.src))
        if root not in depending:
            found[root] = None
    outer: dict[UOp, Buffer] = {}
    for node in [n for n in found if n not in depending]:
        while node.storage is None and node.op.group is OpGroup.MOVEMENT:
            node = node.src[0]
        if _has_data(node):
            outer[node] = _memory_of_values(Tensor._make(node))
    return outer


def _has_data(node: UOp) -> bool:
    return any(u.storage is not None for u in node.toposort(stop=lambda u: u.storage is not None))


def _memory_of_values(t: Tensor) -> Buffer:
    """The memory of a tensor, row-major; it is computed now."""
    node = t.realize().uop
    while node.storage is None and node.op in (Ops.RESHAPE, Ops.DETACH):
        node = node.src[0]
    if node.storage is None:  # computed from constants alone
        return _memory_of_values(Tensor._make(t.uop).clone())
    found: Buffer = node.storage
    return found


# --- recording -------------------------------------------------------------------------------------------------------
def _recorded(body: _LoopBody, reads: Sequence[Buffer], begins: Sequence[Buffer]) -> tuple[Any, list[tuple[int, int]]]:
    """The replay of one round, and its results that are copies of others: by index among all buffers of the replay."""
    nodes = [*body.outer, *body.rows, *body.carries]
    for buffer in (*reads, *begins):
        buffer.is_borrowed = True  # a body that writes to its arguments writes to copies
    table = {n: buffer_node(b, n.shape) for n, b in zip(nodes, (*reads, *begins), strict=True)}
    again = Rewriter(table)
    roots = [UOp(Ops.CONTIGUOUS, n.dtype, (again(n),)) for n in (*body.outs, *body.after)]
    results = {root: Tensor._make(root) for root in roots}  # equal constants are one node
    with recording_apart() as recorded:
        first_result, *others = results.values()
        first_result.realize(*others)
    made = [_memory_of_values(results[root]) for root in roots]
    order = [*reads, *made[: len(body.outs)], *begins, *made[len(body.outs) :]]
    first = {id(b): number for number, b in reversed([*enumerate(order)])}
    first |= {id(b): number for number, b in enumerate(reads)}  # a result may be an argument
    first |= {id(b): len(reads) + len(body.outs) + number for number, b in enumerate(begins)}
    copies = [(first[id(b)], number) for number, b in enumerate(order) if first[id(b)] != number]
    moving = [*order]
    for _, number in copies:
        b = order[number]
        moving[number] = Buffer(b.device, b.dtype, b.numel, None, 0)
    return replay_of(recorded, moving, changes_state=False), copies


def _values_of(node: UOp) -> int:
    return int(static((numel(node.shape),))[0])


def _row_step(node: UOp, device: str) -> int:
    """Values from one row to the next: rows begin where a device may read a slice."""
    count, size = _values_of(node), node.dtype.size_bytes
    aligned = max(1, get_device(device).limits.slice_alignment // size)
    return -(-max(1, count) // aligned) * aligned


class _Layout:
    """Results in one buffer for each dtype, one after the other."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.sizes: dict[Any, int] = {}
        self.slots: list[tuple[Any, int, int, UOp]] = []  # key of the buffer, first, step, node

    def add(self, node: UOp, rows: int, kind: str = "") -> None:
        """Add rows of results of the shape of a node."""
        key, step = (kind, node.dtype), _row_step(node, self.device)
        first = self.sizes.setdefault(key, 0)
        self.slots.append((key, first, step, node))
        self.sizes[key] = first + rows * step

    def allocate(self) -> dict[Any, Buffer]:
        """Make the buffers."""
        return {key: allocate_buffer(self.device, key[1], size) for key, size in self.sizes.items()}


def _launch(body: _LoopBody, rounds: int, rows: Sequence[_Rows], begins: Sequence[_Rows], layout: _Layout, *,
            is_reverse: bool) -> dict[Any, Buffer]:  # fmt: skip
    """Record a loop and run it; the results are in the buffers of the layout."""
    made = layout.allocate()
    targets = list(made.values())
    index_of = {key: n for n, key in enumerate(made)}
    operands = [*(_Rows(b) for b in body.outer.values()), *rows, *begins]
    sources = list({id(p.buffer): p.buffer for p in operands}.values())
    which = {id(b): n for n, b in enumerate(sources)}
    nodes = [*body.outer, *body.rows, *body.carries]
    slots = [
        BufferSlot(which[id(p.buffer)], p.first, p.step, _values_of(n)) for p, n in zip(operands, nodes, strict=True)
    ]
    written = [BufferSlot(index_of[key], first, step, _values_of(node)) for key, first, step, node in layout.slots]
    split, ends = len(slots) - len(body.carries), len(body.outs)
    parts = [slot.of_round(sources, 0) for slot in slots]
    replay, copies = _recorded(body, parts[:split], parts[split:])
    loop = LoopOf(replay, rounds, is_reverse, slots[:split], written[:ends], slots[split:], written[ends:], copies)
    run_on_host(loop, targets, sources, on_buffers=True)
    return made


# --- scan ------------------------------------------------------------------------------------------------------------
def recorded_scan(function: Callable[..., Any], init: Any, xs: Any, rounds: int, *, is_reverse: bool) -> Any:
    """As `scan`, for a captured function."""
    begin, rows = [*parts_of(init)], [] if xs is None else [*parts_of(xs)]
    carries, entries = _placeholders("scan", begin), _placeholders("scan", rows, is_row=True)
    x = None if xs is None else replaced(xs, iter(entries))
    made = _traced("scan", lambda: function(replaced(init, iter(carries)), x))
    new, shown = pair_of(made)
    same_form("scan: the carry", init, new)
    after, ys = [*parts_of(new)], [] if shown is None else [*parts_of(shown)]
    for y in ys:
        if not isinstance(y, Tensor):
            raise ShapeError(f"scan: y has a {type(y).__name__}. Return tensors, in dicts, lists and tuples, or None.")
    body = _LoopBody([t.uop for t in entries], [t.uop for t in carries], [y.uop for y in ys], [t.uop for t in after])
    body.outer = _outer([*body.outs, *body.after], [*body.rows, *body.carries])
    loop = _Scan(body, rounds, is_reverse, begin, rows)
    results = loop.run(wants_gradients=grad_state() and any(t._requires_grad for t in (*ys, *after)))
    last = replaced(init, iter(results[len(ys) :]))
    return last, None if shown is None else replaced(shown, iter(results[: len(ys)]))


class _Scan:
    """A scan in a recording, forwards and then backwards."""

    def __init__(self, body: _LoopBody, rounds: int, is_reverse: bool, begin: list[Tensor], rows: list[Tensor]) -> None:
        self.body, self.rounds, self.is_reverse = body, rounds, is_reverse
        self.begin, self.rows = begin, rows
        self.device = begin[0].device if begin else rows[0].device
        self.packed_rows = [self._packed(t, n) for t, n in zip(rows, body.rows, strict=True)]
        self.outer = [*body.outer]
        self.saved: list[_Rows] = []

    def _packed(self, t: Tensor, node: UOp) -> _Rows:
        """The rows of a tensor, each where a device may read a slice."""
        step, count = _row_step(node, self.device), _values_of(node)
        flat = t.detach().reshape((self.rounds, count))
        return _Rows(_memory_of_values(flat if step == count else flat.pad((0, step - count))), 0, step)

    def run(self, *, wants_gradients: bool) -> list[Tensor]:
        """Launch; return the rows of each y, then the last carries."""
        body, layout = self.body, _Layout(self.device)
        for node in body.outs:
            layout.add(node, self.rounds)
        count = len(body.outs)
        if wants_gradients:
            body.outs = [*body.outs, *body.carries]
            for node in body.carries:
                layout.add(node, self.rounds, "saved")
        for node in body.after:
            layout.add(node, 1)
        begins = [_Rows(_memory_of_values(t.detach())) for t in self.begin]
        made = _launch(body, self.rounds, self.packed_rows, begins, layout, is_reverse=self.is_reverse)
        wholes = {key: Tensor._make(buffer_node(buffer), self.device) for key, buffer in made.items()}
        slots = layout.slots[:count] + layout.slots[len(body.outs) :]
        if wants_gradients:
            self.saved = [_Rows(made[key], first, step) for key, first, step, _ in layout.slots[count : len(body.outs)]]
            body.outs = body.outs[:count]
            sources = [*self.begin, *self.rows, *map(Tensor._make, self.outer)]
            for key, whole in wholes.items():
                if key[1].is_float and not key[0]:
                    rule = _Backward(self, slots, key)
                    wholes[key] = sealed(whole, sources, rule)
                    wholes[key]._requires_grad = True
        self.begin, self.rows = [], []  # no rule holds a tensor
        return [
            _unpacked_rows(wholes[key], first, step, node, self.rounds if n < count else None)
            for n, (key, first, step, node) in enumerate(slots)
        ]


def _unpacked_rows(whole: Tensor, first: int, step: int, node: UOp, rounds: int | None) -> Tensor:
    """Rows of a packed buffer in their shape; rounds None: one row, without an axis for it."""
    count = _values_of(node)
    part = whole[first : first + (rounds or 1) * step].reshape((rounds or 1, step))[:, :count]
    return part.reshape(static(node.shape) if rounds is None else (rounds, *static(node.shape)))


class _Backward:
    """The gradient of one buffer of results: a loop over the rounds, the last one first."""

    def __init__(self, scan: _Scan, slots: Sequence[Any], key: Any) -> None:
        self.scan, self.slots, self.key = scan, slots, key

    def __call__(self, _: UOp, below: tuple[UOp, ...], grad: UOp) -> list[UOp | None]:
        """The gradients of the first carries, of the rows, and of what the body read from outside."""
        scan, body = self.scan, self.scan.body
        whole = _memory_of_values(Tensor._make(grad).detach())
        of_ys = [(n, s) for n, s in zip(body.outs, self.slots, strict=False) if s[0] == self.key]
        of_carries = dict(zip(body.after, self.slots[len(body.outs) :], strict=True))
        carries = [n for n in body.carries if n.dtype.is_float]
        after = [a for a, n in zip(body.after, body.carries, strict=True) if n.dtype.is_float]
        rows = [n for n in body.rows if n.dtype.is_float]
        outer = [n for n in scan.outer if n.dtype.is_float]
        dy = [placeholder(n.dtype, n.shape, scan.device) for n, _ in of_ys]
        dc = [placeholder(n.dtype, n.shape, scan.device) for n in carries]
        slopes: dict[UOp, UOp] = {}
        targets = (*carries, *rows, *outer)
        for root, seed in [*zip([n for n, _ in of_ys], dy, strict=True), *zip(after, dc, strict=True)]:
            for target, part in gradient_of(root, seed, targets, targets).items():
                slopes[target] = slopes[target] + part if target in slopes else part
        outer = [n for n in outer if n in slopes]
        sums = [placeholder(n.dtype, n.shape, scan.device) for n in outer]
        back = _LoopBody(
            [*body.carries, *body.rows, *dy], [*dc, *sums], [_or_zeros(slopes, n) for n in rows],
            [*(_or_zeros(slopes, n) for n in carries), *(s + slopes[n] for s, n in zip(sums, outer, strict=True))],
        )  # fmt: skip
        back.outer = _outer([*back.outs, *back.after], [*back.rows, *back.carries])
        layout = _Layout(scan.device)
        for node in back.outs:
            layout.add(node, scan.rounds)
        for node in back.after:
            layout.add(node, 1)
        rows_read = [*scan.saved, *scan.packed_rows, *(_Rows(whole, first, step) for _, (_, first, step, _) in of_ys)]
        begins = [
            _Rows(whole, of_carries[a][1]) if of_carries[a][0] == self.key else _Rows(_memory_of_values(_zeros(n)))
            for a, n in zip(after, carries, strict=True)
        ]
        begins += [_Rows(_memory_of_values(_zeros(n))) for n in outer]
        made = _launch(back, scan.rounds, rows_read, begins, layout, is_reverse=not scan.is_reverse)
        found = dict(zip([*rows, *carries, *outer], layout.slots, strict=True))
        loops = _BothLoops(scan, back, of_ys, [of_carries[a] if of_carries[a][0] == self.key else None for a in after],
                           [*rows, *carries, *outer])  # fmt: skip
        results: list[UOp | None] = []
        for node in (*body.carries, *body.rows, *scan.outer):
            if node not in found:
                results.append(None)
                continue
            key, first, step, like = found[node]
            whole_of = Tensor._make(buffer_node(made[key]))
            shown = _unpacked_rows(whole_of, first, step, like, scan.rounds if node in rows else None)
            sources = [Tensor._make(grad), *map(Tensor._make, below)]
            results.append(sealed(shown, sources, partial(loops.gradient, node)).uop)
        return results


@dataclass(slots=True)
class _BothLoops:
    """The loop and the one that is its gradient, as scans that have gradients in turn. They run again: few programs
    take second derivatives, and no other keeps anything for them.

    `of_ys`: the ys of the gradient's buffer, with where they are in it; `of_carries`: the same of the last carries,
    None for one in another buffer; `made`: of which nodes the second loop makes gradients.
    """

    scan: _Scan
    back: _LoopBody
    of_ys: Sequence[Any]
    of_carries: Sequence[Any]
    made: Sequence[UOp]

    def gradient(self, node: UOp, _: UOp, below: tuple[UOp, ...], grad: UOp) -> list[UOp | None]:
        """The gradient of one result of the second loop: by the gradient that it began with, then by what the first
        loop began with and read."""
        body = self.scan.body
        split = 1 + len(body.carries) + len(body.rows)
        # movements are looked through where a body reads from outside, so those nodes are themselves
        given = [*(_leaf(apart(n, is_constant=False)) for n in below[:split]), *map(_leaf, below[split:])]
        middle = 1 + len(body.carries)
        outer = dict(zip(self.scan.outer, (t.uop for t in given[split:]), strict=True))
        found = self._again(given[0], given[1:middle], given[middle:split], outer)
        targets = [t.uop for t in given]
        slopes = gradient_of(found[node].uop, grad, targets, targets)
        return [slopes.get(target) for target in targets]

    def _again(
        self, grad: Tensor, begin: Sequence[Tensor], rows: Sequence[Tensor], outer: dict[UOp, UOp]
    ) -> dict[UOp, Tensor]:
        scan, body, back = self.scan, self.scan.body, self.back

        def forward(carries: list[Tensor], x: list[Tensor]) -> Any:
            table = dict(zip([*body.carries, *body.rows], (t.uop for t in (*carries, *x)), strict=True))
            again = Rewriter(table | outer)
            return [_leaf(again(n)) for n in body.after], list(carries)

        def backward(carries: list[Tensor], x: list[Tensor]) -> Any:
            table = dict(zip([*back.carries, *back.rows], (t.uop for t in (*carries, *x)), strict=True))
            again = Rewriter(table | outer)
            return [_leaf(again(n)) for n in back.after], [_leaf(again(n)) for n in back.outs]

        saved = recorded_scan(forward, list(begin), list(rows), scan.rounds, is_reverse=scan.is_reverse)[1]
        seeds = [_unpacked_rows(grad, first, step, n, scan.rounds) for n, (_, first, step, _) in self.of_ys]
        starts = [_leaf(_zeros(n).uop) if slot is None else _unpacked_rows(grad, slot[1], slot[2], n, None)
                  for slot, n in zip(self.of_carries, back.carries, strict=False)]  # fmt: skip
        starts += [_leaf(_zeros(n).uop) for n in back.carries[len(starts) :]]
        last, ys = recorded_scan(backward, starts, [*saved, *rows, *seeds], scan.rounds, is_reverse=not scan.is_reverse)
        return dict(zip(self.made, [*ys, *last], strict=True))


def _leaf(node: UOp) -> Tensor:
    return Tensor._make(node, None, node.dtype.is_float)


def _or_zeros(slopes: dict[UOp, UOp], node: UOp) -> UOp:
    return slopes[node] if node in slopes else Tensor._make(node)._filled(0).uop


def _zeros(like: UOp) -> Tensor:
    return Tensor.zeros(*static(like.shape), dtype=like.dtype)


# --- while -----------------------------------------------------------------------------------------------------------
def recorded_while(condition: Callable[[Any], Any], function: Callable[[Any], Any], init: Any) -> Any:
    """As `while_loop`, for a captured function."""
    begin = [*parts_of(init)]
    carries = _placeholders("while_loop", begin)

    def round_of() -> tuple[Any, Any]:
        new = function(replaced(init, iter(carries)))
        same_form("while_loop: the value", init, new)
        return new, condition(new)

    made, flag = _traced("while_loop", round_of)
    start = condition(init)
    for one in (start, flag):
        if not isinstance(one, Tensor) or one.numel() != 1 or not one.dtype.is_bool:
            shown = f"{one.dtype.name} {show_shape(one.uop.shape)}" if isinstance(one, Tensor) else type(one).__name__
            raise ShapeError(f"while_loop: the condition is {shown}. Return a bool tensor of one element.")
    after = [*parts_of(made)]
    if grad_state() and any(t._requires_grad for t in after):
        raise GradientError(
            "while_loop: in a captured function it has no gradient. Write detach() or no_grad(), or use scan."
        )
    body = _LoopBody([], [t.uop for t in carries], [reshape(flag.uop, ())], [t.uop for t in after])
    body.outer = _outer([*body.outs, *body.after], body.carries)
    begins = [_memory_of_values(t) for t in begin]
    sources = [_memory_of_values(start.reshape(())), *body.outer.values(), *begins]
    slots = [BufferSlot(n, 0, 0, b.numel) for n, b in enumerate(sources)][1:]
    parts = [slot.of_round(sources, 0) for slot in slots]
    split = len(body.outer)
    replay, copies = _recorded(body, parts[:split], parts[split:])
    targets = [allocate_buffer(b.device, b.dtype, b.numel) for b in begins]
    flags = allocate_buffer(sources[0].device, dtypes.bool, 1)
    loop = LoopWhile(replay, slots[:split], slots[split:], flags, copies)
    run_on_host(loop, targets, sources, on_buffers=True)
    results = [Tensor._make(buffer_node(b, t.uop.shape), b.device) for b, t in zip(targets, begin, strict=True)]
    return replaced(init, iter(results))

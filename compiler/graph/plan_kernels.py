"""From a closed tensor graph to kernels in order: fuse, build each body, order by reads and writes.

When: once per new graph structure; the caller caches the result for every graph of the same structure. Assumes: the
data of the graph are PARAM(slot, numel) nodes. Guarantees: each kernel is a SINK of STOREs over its own PARAMs with
locally numbered slots, so equal kernels of different layers are the same node; an assignment writes in place only if no
reader can see the difference. Tests: tests/compiler/graph/test_plan_kernels.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush

from kernmill.ir import (
    BufferPlan,
    CheckItem,
    Copy,
    DeviceTable,
    GraphPlan,
    Kernel,
    Op,
    OpGroup,
    Ops,
    UOp,
    as_size,
    current_origin,
    distinct,
    dtypes,
    index_const,
    memory_of,
    numel,
    show_size,
    simplify,
    static,
    substitute,
)

from ..kernel.facts import KernelInfo, masked, neutral_element, numbered
from ..kernel.reduce_loops import tidy_reduce_loops
from .fuse import Fusion, Kept, fuse, region_gate
from .merge_kernels import merge_kernels
from .place import Placed, place_graph
from .rangeify import TRUE, Use
from .read_parts import reading_parts
from .split_reduce import split_reduces

__all__ = ["plan_kernels"]

_NO_PRICE: Mapping[str, float] = {}
_NO_ALIGNMENTS: Mapping[str, int] = {}
_TRANSPARENT = frozenset({Ops.RESHAPE, Ops.DETACH, Ops.CHECK, Ops.CONTIGUOUS})


def plan_kernels(
    roots: Sequence[UOp],
    devices: Sequence[str],
    in_place: frozenset[int],
    default_device: str,
    table: DeviceTable | None = None,
    price: Mapping[str, float] = _NO_PRICE,
    slice_alignments: Mapping[str, int] = _NO_ALIGNMENTS,
) -> GraphPlan:
    """Plan the kernels for `roots`, a closed graph whose PARAM slot i is on devices[i].

    `in_place` are the slots that an ASSIGN may overwrite: nothing outside this graph will read their old values. With a
    `table` of several devices, the first step gives each node its device.
    `slice_alignments`: bytes, of a part of a buffer that a kernel gets as a buffer, by device; 1 where it is absent.
    """
    roots, placed = split_reduces(roots), Placed([])
    if table is not None:
        placed = place_graph(roots, devices, table, price)
        roots = placed.roots
    refused: set[UOp] = set()
    while True:
        builder = _Builder(list(roots), devices, in_place, default_device, refused, placed.devices)
        plan = builder.run()
        plan.placement = placed.placement
        clash = builder.clashes()
        if not clash:
            plan.items = [
                reading_parts(i, plan.buffers, slice_alignments) if isinstance(i, Kernel) else i
                for i in merge_kernels(plan)
            ]
            return plan
        refused |= clash


def _down_to_base(node: UOp) -> list[UOp]:
    """Return the node and the nodes below it with its values in its order; the last one owns the memory."""
    path = [node]
    while path[-1].op in _TRANSPARENT and not (path[-1].op is Ops.CONTIGUOUS and _is_view(path[-1].src[0])):
        path.append(path[-1].src[0])
    return path


def _base(node: UOp) -> UOp:
    """The node whose memory a root can share: reshapes keep the row-major values."""
    return _down_to_base(node)[-1]


def _is_view(node: UOp) -> bool:
    return node.op.group is OpGroup.MOVEMENT and node.op is not Ops.RESHAPE


@dataclass(slots=True)
class _Builder:
    """One attempt: the assignments in place are fixed at the start and checked at the end."""

    roots: list[UOp]
    devices: Sequence[str]
    in_place: frozenset[int]
    default_device: str
    refused: set[UOp]
    placed: Mapping[UOp, str]  # devices of nodes, of a graph over several
    plan: GraphPlan = field(default_factory=GraphPlan)
    buffer_of: dict[UOp, int] = field(default_factory=dict[UOp, int])  # node with memory -> buffer
    targets: dict[UOp, int] = field(default_factory=dict[UOp, int])  # in-place ASSIGN -> buffer that it writes
    values: dict[tuple[UOp, Use], UOp] = field(default_factory=dict[tuple[UOp, Use], UOp])
    slots: list[dict[int, int]] = field(default_factory=list[dict[int, int]])  # of each kernel: buffer -> slot
    kernels: dict[UOp, Kernel] = field(default_factory=dict[UOp, Kernel])
    device_of: dict[UOp, str | None] = field(default_factory=dict["UOp", "str | None"])
    reads: dict[UOp, set[UOp]] = field(default_factory=dict["UOp", "set[UOp]"])  # root -> nodes it reads
    readers: dict[UOp, list[UOp]] = field(default_factory=dict["UOp", "list[UOp]"])  # node -> roots that read it
    waits: dict[UOp, set[UOp]] = field(default_factory=dict["UOp", "set[UOp]"])  # root -> roots that run before it
    origins: dict[int, list[str]] = field(default_factory=dict[int, list[str]])  # of each kernel
    is_stuck: bool = False

    def run(self) -> GraphPlan:
        sink = UOp(Ops.SINK, dtypes.void, tuple(self.roots))
        order = sink.toposort()
        bases = [_base(root) for root in self.roots]
        checks = [node for node in order if node.op is Ops.CHECK]
        forced = {node for node in bases if node.op is not Ops.PARAM}
        for node in order:
            if node.op in (Ops.CONTIGUOUS, Ops.ASSIGN, Ops.COPY) and _base(node).op is not Ops.PARAM:
                forced.add(node if node.op is not Ops.CONTIGUOUS else _base(node))
            if node.op is Ops.COPY and _base(node.src[0]).op is not Ops.PARAM:
                forced.add(_base(node.src[0]))  # the source of a copy: reshapes have no separate memory
            if node.op is Ops.ROUTINE:  # reads its sources as a whole
                forced |= {node, *(base for s in node.src if (base := _base(s)).op is not Ops.PARAM)}
        forced |= {_base(check.src[1]) for check in checks if _base(check.src[1]).op is not Ops.PARAM}
        self._inputs(order)
        fusion = fuse(
            UOp(Ops.SINK, dtypes.void, (*bases, *(_base(c.src[1]) for c in checks))), forced, self._targets(order)
        )
        self._allocate(fusion)
        self._bodies(fusion)
        self._order(fusion)
        self.plan.results = [self.buffer_of[base] for base in bases]
        self.plan.checks = [CheckItem(self.buffer_of[_base(c.src[1])], str(c.arg)) for c in checks]
        for number in (*self.plan.results, *(check.buffer for check in self.plan.checks)):
            self.plan.buffers[number].is_output = True
        return self.plan

    def _inputs(self, order: list[UOp]) -> None:
        for node in order:
            if node.op is Ops.PARAM:
                slot, count = int(node.arg[0]), node.arg[1]
                self.buffer_of[node] = self._new(node, int(static((count,))[0]), self.devices[slot], slot)
                self.device_of[node] = self.devices[slot]
            elif node.op is Ops.COPY:
                self.device_of[node] = node.arg
            else:
                sources = (device for s in node.src if (device := self.device_of[s]))
                self.device_of[node] = self.placed.get(node) or next(sources, None)
        results = {_base(root) for root in self.roots}  # those of constants are on the default device
        for node in reversed(order):  # a value computed from constants is computed on the device that reads it
            device = None if node.op is Ops.COPY else self.device_of[node]
            for s in node.src if device is not None else ():
                self.device_of[s] = self.device_of[s] or (None if s in results else device)

    def _new(self, node: UOp, count: int, device: str, slot: int | None = None) -> int:
        size = as_size(numel(node.shape))
        extent = "" if isinstance(size, int) else show_size(size)
        self.plan.buffers.append(BufferPlan(node.dtype, count, device, slot, extent=extent))
        return len(self.plan.buffers) - 1

    def _targets(self, order: list[UOp]) -> frozenset[UOp]:
        """The ASSIGNs that may write over their old value."""
        readers: dict[UOp, int] = {}
        for node in order:
            for s in node.src:
                readers[s] = readers.get(s, 0) + 1
        taken: set[UOp] = set()
        for node in order:
            if node.op is not Ops.ASSIGN or node in self.refused:
                continue
            old = _base(node.src[0])
            if old in taken:
                continue  # two assignments to one old value: only one may overwrite it
            taken.add(old)
            is_alone = all(readers[view] == 1 for view in _down_to_base(node.src[0]))
            if (old.op is Ops.PARAM and old.arg[0] in self.in_place) or (old in self.targets and is_alone):
                self.targets[node] = self.targets.get(old, self.buffer_of.get(old, -1))
        return frozenset(self.targets)

    def _allocate(self, fusion: Fusion) -> None:
        for kernel in fusion.roots:
            node = kernel.node
            if node in self.targets:
                self.buffer_of[node] = self.targets[node]
            else:
                self.buffer_of[node] = self._new(node, _count(node), self.device_of.get(node) or self.default_device)
        self.slots = [{self.buffer_of[kernel.node]: 0} for kernel in fusion.roots]

    # --- bodies
    def _bodies(self, fusion: Fusion) -> None:
        outer = current_origin.line
        try:
            for node in fusion.order:
                if node.op is not Ops.SINK:
                    current_origin.line = node.origin  # new nodes get the source location of the node
                    self._body(node, fusion)
        finally:
            current_origin.line = outer

    def _body(self, node: UOp, fusion: Fusion) -> None:
        number = fusion.kernel_of.get(node)
        if number is not None:
            self._finish(node, number, fusion)
        elif node in fusion.kept:
            self._keep(node, fusion.kept[node], fusion)
            return
        for use in fusion.uses.get(node, ()):
            key = (node, use)
            if node in self.buffer_of:
                self.values[key] = self._load(node, use, fusion)
            elif key in fusion.below or node.op in (Ops.CONST, Ops.IOTA, Ops.VARIABLE):
                self.values[key] = self._value(node, use, fusion)
                if node.origin and node.op.group is not OpGroup.MOVEMENT and node.op is not Ops.CONST:
                    self.origins.setdefault(use.kernel, []).append(node.origin)

    def _keep(self, node: UOp, kept: Kept, fusion: Fusion) -> None:
        """Fill a row buffer in its own loops; every use reads it from there."""
        sizes = tuple(node.shape[axis] for axis in kept.axes)
        memory = UOp(Ops.LOCAL, node.dtype, kept.around, (str(kept.loops[0].arg[0]), int(static((numel(sizes),))[0])))
        place = UOp(Ops.INDEX, node.dtype, (memory, fusion.places.flat(kept.loops, sizes)))
        store = UOp(Ops.STORE, dtypes.void, (place, self._value(node, kept.use, fusion)))
        filled = UOp(Ops.AFTER, node.dtype, (memory, store, *kept.loops), 1)
        for use in fusion.uses[node]:
            here = fusion.places.flat(tuple(use.place[axis] for axis in kept.axes), sizes)
            self.values[node, use] = UOp(Ops.LOAD, node.dtype, (UOp(Ops.INDEX, node.dtype, (filled, here)),))

    def _load(self, node: UOp, use: Use, fusion: Fusion) -> UOp:
        place = (self._memory(node, use.kernel), fusion.places.flat(use.place, node.shape))
        low, high = place[1].bounds
        is_inside = use.gate is TRUE or (low >= 0 and high < place[0].arg[-1])  # values read outside are not used
        gate = () if is_inside else (use.gate,)
        return UOp(Ops.LOAD, node.dtype, (UOp(Ops.INDEX, node.dtype, (*place, *gate)),))

    def _value(self, node: UOp, use: Use, fusion: Fusion) -> UOp:
        match node.op:
            case Ops.CONST | Ops.VARIABLE:
                return node
            case Ops.IOTA:
                return use.place[0].cast(node.dtype)
        below = fusion.below[node, use]
        src = [self.values[s, u] for s, u in zip(node.src, below, strict=False) if u is not None]
        if node.op.group is OpGroup.MOVEMENT:
            gated = below[0] is not None and below[0].gate is not use.gate
            return below[0].gate.where(src[0], 0) if gated and below[0] is not None else src[0]
        match node.op:
            case Ops.REDUCE:
                return reduction(node.arg[0], src[0], fusion.reduce_loops[node, use])
            case Ops.ASSIGN if node not in self.targets:
                return src[1] if node.arg is None else region_gate(node, use.place)[0].where(src[1], src[0])
            case Ops.TAKE | Ops.COPY | Ops.CHECK | Ops.DETACH | Ops.CONTIGUOUS | Ops.ASSIGN:
                return src[0]
            case Ops.CDIV | Ops.CMOD:
                return UOp(node.op, node.dtype, (src[0], _divisor(*src)))
        return UOp(node.op, node.dtype, tuple(src))

    def _finish(self, node: UOp, number: int, fusion: Fusion) -> None:
        """Build the kernel of a node: a STORE of its value at its index, with locally numbered buffers."""
        if node.op is Ops.COPY:
            return
        if node.op is Ops.ROUTINE:
            self._call(node, number)
            return
        kernel = fusion.roots[number]
        use = Use(number, kernel.index, TRUE)
        value = self._value(node, use, fusion)
        place = kernel.index
        if node in self.targets and node.arg is not None:
            place = tuple(i * step + start for i, (start, _, step) in zip(place, node.arg, strict=True))
        target = UOp(Ops.INDEX, node.dtype, (self._memory(node, number), fusion.places.flat(place, node.shape)))
        ast = UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (target, value)),))
        if kernel.has_takes:
            ast = _insert_taken(ast, fusion, self.values)
        ast, slots = _finished(ast, kernel.loops)
        buffers = list(self.slots[number])
        device = self.device_of.get(node) or self.default_device
        used = tuple(buffers[slot] for slot in slots)
        origins = distinct(([node.origin] if node.origin else []) + self.origins.get(number, []))
        self.kernels[node] = Kernel.of(ast, used, (self.buffer_of[node],), device, origins)

    def _call(self, node: UOp, number: int) -> None:
        """Build the kernel of a routine: its node, which reads from the first element of each source on."""
        out = UOp(Ops.INDEX, node.dtype, (self._memory(node, number), index_const(0)))
        read = [UOp(Ops.INDEX, s.dtype, (self._memory(_base(s), number), index_const(0))) for s in node.src]
        value = node.replace(src=tuple(UOp(Ops.LOAD, place.dtype, (place,)) for place in read))
        ast, slots = numbered(UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (out, value)),)))
        name, _, batch, _, *sizes = node.arg
        ast = ast.replace(arg=KernelInfo(f"{name}_{'x'.join(map(str, (batch, *sizes)))}", ()))
        device = self.device_of.get(node) or self.default_device
        buffers = list(self.slots[number])
        used = tuple(buffers[slot] for slot in slots)
        origins = (node.origin,) if node.origin else ()
        self.kernels[node] = Kernel.of(ast, used, (self.buffer_of[node],), device, origins)

    def _memory(self, node: UOp, kernel: int) -> UOp:
        """The buffer of a node in the body of a kernel: numbered as that meets them, so that equal layers are equal."""
        slots = self.slots[kernel]
        slot = slots.setdefault(self.buffer_of[node], len(slots))
        return UOp(Ops.PARAM, node.dtype, (), (slot, *_extent(node)))

    # --- order
    def _order(self, fusion: Fusion) -> None:
        """Producers before readers, readers of an old value before the kernel that overwrites it."""
        self.reads = {k.node: _data_below(k.node, self.buffer_of) for k in fusion.roots}
        for node, below in self.reads.items():
            for read in below:
                self.readers.setdefault(read, []).append(node)
        self.waits = waits = self._waits()
        nodes = [k.node for k in reversed(fusion.roots)]  # the first one that is ready comes first
        number = {node: n for n, node in enumerate(nodes)}
        users: dict[UOp, list[UOp]] = {}
        for node, needed in waits.items():
            for needs in needed:
                users.setdefault(needs, []).append(node)
        missing = {node: len(needed) for node, needed in waits.items()}
        ready = _Ready()
        for n, node in enumerate(nodes):
            if not missing[node]:
                ready.add(n, self._device_in_order(node))
        pending = dict.fromkeys(nodes)
        while pending:
            first = ready.take()
            if first is not None:
                node = nodes[first]
            else:  # a clash, which clashes() names
                self.is_stuck, node = True, next(iter(pending))
            if node not in pending:
                continue
            del pending[node]
            for user in users.get(node, ()):
                missing[user] -= 1
                if not missing[user]:
                    ready.add(number[user], self._device_in_order(user))
            self._launch(node, fusion)

    def _device_in_order(self, node: UOp) -> str:
        """The device of a kernel; "" of a copy, for which kernels of one device are interrupted."""
        return "" if node.op is Ops.COPY else self.device_of.get(node) or self.default_device

    def _launch(self, node: UOp, fusion: Fusion) -> None:
        """Add the kernel of a node to the plan, unless there is nothing to compute."""
        loops = fusion.roots[fusion.kernel_of[node]].loops
        if all(loop.src[0].bounds != (0, 0) for loop in loops):
            copy = Copy(self.buffer_of[_base(node.src[0])], self.buffer_of[node]) if node.op is Ops.COPY else None
            self.plan.items.append(copy or self.kernels[node])

    def _waits(self) -> dict[UOp, set[UOp]]:
        waits = {node: {s for s in below if s in self.reads} for node, below in self.reads.items()}
        for node in self.targets:
            waits[node].update(reader for reader in self._readers_of_old(node) if reader is not node)
        return waits

    def _readers_of_old(self, node: UOp) -> list[UOp]:
        """Return the kernels that read what an assignment in place overwrites."""
        return self.readers.get(_base(node.src[0]), [])

    def clashes(self) -> set[UOp]:
        """Return the in-place assignments that would be visible: an old value is read later, or elsewhere."""
        clash: set[UOp] = set()
        kept = {_base(root) for root in self.roots}  # an old value that is itself a root
        for node, target in self.targets.items():
            old = _base(node.src[0])
            if old.op is Ops.PARAM and old in kept:
                clash.add(node)
            if node in self.kernels and not _reads_only_its_place(self.kernels[node], target):
                clash.add(node)
            if any(reader is not node and _depends(reader, node, self.reads) for reader in self._readers_of_old(node)):
                clash.add(node)
        if self.is_stuck and not clash:  # some overwrite what the others still read: one of them gets a separate buffer
            clash = {next(node for node in self.targets if _depends(node, node, self.waits))}
        return clash


class _Ready:
    """Kernels whose sources are computed, by number.

    Kernels of the device that the last one ran on come first, then copies: so a device runs many kernels in a row.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[int]] = {}  # by device; "": copies
        self.device = ""

    def add(self, number: int, device: str) -> None:
        heappush(self.waiting.setdefault(device, []), number)

    def take(self) -> int | None:
        """The next one; None if none is ready."""
        for device in (self.device, ""):
            if found := self.waiting.get(device):
                return heappop(found)
        full = [(numbers[0], device) for device, numbers in self.waiting.items() if numbers]
        if not full:
            return None
        self.device = min(full)[1]
        return heappop(self.waiting[self.device])


def _divisor(a: UOp, b: UOp) -> UOp:
    """`b` where the divide instruction takes it, else 1: idle lanes hold 0, and a WHERE computes both branches."""
    bad = b.eq(0)
    if a.dtype.min:
        bad = bad | (b.eq(-1) & a.eq(int(a.dtype.min)))
    return bad.where(1, b)


def _depends(node: UOp, on: UOp, reads: dict[UOp, set[UOp]]) -> bool:
    seen: set[UOp] = set()
    stack = [node]
    while stack:
        new = reads.get(stack.pop(), set()) - seen
        seen |= new
        stack += new
    return on in seen


def _data_below(node: UOp, buffer_of: dict[UOp, int]) -> set[UOp]:
    """The nodes with memory that the kernel of `node` may read."""
    below = (u for s in node.src for u in s.toposort(stop=buffer_of.__contains__))
    return {u for u in below if u in buffer_of}


def _reads_only_its_place(kernel: Kernel, target: int) -> bool:
    own, order = kernel.ast.src[0].src[0], kernel.ast.toposort()
    slots = {slot for slot, number in enumerate(kernel.buffers) if number == target}
    inside_reduce = {n for r in order if r.op is Ops.REDUCE for n in r.toposort()}
    reads = [node for node in order if node.op is Ops.LOAD and memory_of(node.src[0]).arg[0] in slots]
    return all(read.src[0] is own and read not in inside_reduce for read in reads)


def _count(node: UOp) -> int:
    return int(static((numel(node.shape),))[0])


def _extent(node: UOp) -> tuple[int, ...]:
    """Return the values in the memory of a node; greatest and least number if it differs from run to run."""
    size = as_size(numel(node.shape))
    return (size,) if isinstance(size, int) else (int(size.bounds[1]), int(size.bounds[0]))


@lru_cache(maxsize=1024)  # an equal layer has the same kernel
def _finished(ast: UOp, loops: tuple[UOp, ...]) -> tuple[UOp, tuple[int, ...]]:
    """The kernel of a body, and which of the body's slots became slot 0, 1, ..: the output first, then as read."""
    ast, slots = numbered(tidy_reduce_loops(simplify(ast)))
    info = KernelInfo(_name(ast, loops), tuple(str(r.arg[0]) for r in loops))
    return ast.replace(arg=info), slots


def _insert_taken(ast: UOp, fusion: Fusion, values: dict[tuple[UOp, Use], UOp]) -> UOp:
    """Replace the placeholders of TAKE by the index, clamped to the axis (CHECK reports indices out of range)."""
    while True:
        found = [node for node in ast.toposort() if node in fusion.taken]
        if not found:
            return ast
        table: dict[UOp, UOp] = {}
        for stand_in in found:
            index_node, index_use, size = fusion.taken[stand_in]
            value = values[index_node, index_use].cast(dtypes.index)
            if isinstance(size, UOp):  # the memory has the elements of this size, not those of its greatest value
                table[stand_in] = value.alu(Ops.MIN, size - 1).alu(Ops.MAX, 0)
            else:
                table[stand_in] = value.alu(Ops.MAX, 0).alu(Ops.MIN, stand_in.arg[2])
        ast = substitute(ast, table)


def reduction(op: Op, value: UOp, loops: tuple[UOp, ...]) -> UOp:
    """Build a REDUCE in a kernel: the neutral element for no elements; a sum of a sum is one sum over all loops."""
    if any(r.src[0].is_const and r.src[0].arg == 0 for r in loops):
        return neutral_element(op, value)
    gate, inner = masked(value, op)
    if inner.op is Ops.REDUCE and inner.arg == (op, 1):
        body = inner.src[0] if gate is None else gate.where(inner.src[0], value.src[2])
        return UOp(Ops.REDUCE, value.dtype, (body, *loops, *inner.src[1:]), (op, 1))
    return UOp(Ops.REDUCE, value.dtype, (value, *loops), (op, 1))


_WORDS = {Ops.ADD: "sum", Ops.MUL: "prod", Ops.MAX: "max", Ops.MIN: "min", Ops.AND: "all", Ops.OR: "any",
          Ops.XOR: "parity"}  # fmt: skip


def _name(ast: UOp, loops: tuple[UOp, ...]) -> str:
    """Name a kernel by its kind and sizes: `sum_512x512_k512`, `map_128x784`."""
    reduces = [node for node in ast.toposort() if node.op is Ops.REDUCE]
    words = list(dict.fromkeys(_WORDS[node.arg[0]] for node in reduces)) or ["map"]
    sizes = "x".join(_size(r) for r in loops) or "1"
    inner = dict.fromkeys(r for node in reduces for r in node.src[node.arg[1] :])
    tail = "_k" + "x".join(_size(r) for r in inner) if inner else ""
    return f"{'_'.join(words)}_{sizes}{tail}"


def _size(r: UOp) -> str:
    size = simplify(r.src[0])
    return str(size.arg) if size.op is Ops.CONST else f"n{size.bounds[1]}"  # known at launch: the greatest

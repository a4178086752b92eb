"""Kernels of a graph whose fusion is decided: buffers for the stored nodes, and a body for each kernel.

When: after fusion. Assumes: the data of the graph are PARAM(slot, numel) nodes. Guarantees: each kernel is a SINK of
STOREs over its own PARAMs with locally numbered slots, so equal kernels of different layers are the same node. Tests:
tests/compiler/graph/test_build_kernels.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from kernmill.ir import (
    BufferPlan,
    CheckItem,
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
    numel,
    show_size,
    simplify,
    static,
    substitute,
)

from ..kernel.facts import KernelInfo, masked, neutral_element, numbered
from ..kernel.reduce_loops import tidy_reduce_loops
from .bases import memory_base
from .choose_stored import StoredNodes
from .fuse import Fusion, RowBuffer, region_gate
from .rangeify import TRUE, Use

__all__ = ["BuiltKernels", "build_kernels"]


@dataclass(slots=True)
class BuiltKernels:
    """The kernel of each stored node, except of copies, and a plan with their buffers."""

    unordered: GraphPlan  # buffers, results and checks; no items yet
    buffer_of: dict[UOp, int]  # node with memory -> number of its buffer
    kernels: dict[UOp, Kernel]


def build_kernels(
    fusion: Fusion, stored: StoredNodes, targets: Mapping[UOp, UOp], device_of: Mapping[UOp, str],
) -> BuiltKernels:  # fmt: skip
    """Build the kernels; an ASSIGN of `targets` writes into the memory of a PARAM."""
    plan, buffer_of = GraphPlan(), dict[UOp, int]()
    for node, device in device_of.items():
        if node.op is Ops.PARAM:
            slot, count = int(node.arg[0]), node.arg[1]
            buffer_of[node] = _new(plan, node, int(static((count,))[0]), device, slot)
    for root in fusion.roots:
        node = root.node
        if node in targets:
            buffer_of[node] = buffer_of[targets[node]]
        else:
            buffer_of[node] = _new(plan, node, int(static((numel(node.shape),))[0]), device_of[node])
    bodies = _Bodies(fusion, targets, device_of, buffer_of)
    bodies.run()
    plan.results = [buffer_of[base] for base in stored.results]
    plan.checks = [CheckItem(buffer_of[memory_base(check.src[1])], str(check.arg)) for check in stored.checks]
    for number in (*plan.results, *(check.buffer for check in plan.checks)):
        plan.buffers[number].is_output = True
    return BuiltKernels(plan, buffer_of, bodies.kernels)


def _new(plan: GraphPlan, node: UOp, count: int, device: str, slot: int | None = None) -> int:
    size = as_size(numel(node.shape))
    extent = "" if isinstance(size, int) else show_size(size)
    plan.buffers.append(BufferPlan(node.dtype, count, device, slot, extent=extent))
    return len(plan.buffers) - 1


@dataclass(slots=True)
class _Bodies:
    """The bodies of all kernels, built in one walk over the nodes: the value of each node at each of its uses."""

    fusion: Fusion
    targets: Mapping[UOp, UOp]
    device_of: Mapping[UOp, str]
    buffer_of: dict[UOp, int]
    values: dict[tuple[UOp, Use], UOp] = field(default_factory=dict[tuple[UOp, Use], UOp])
    slots: list[dict[int, int]] = field(default_factory=list[dict[int, int]])  # of each kernel: buffer -> slot
    kernels: dict[UOp, Kernel] = field(default_factory=dict[UOp, Kernel])
    origins: dict[int, list[str]] = field(default_factory=dict[int, list[str]])  # of each kernel
    reduced: dict[int, str] = field(default_factory=dict[int, str])  # the origin of the last reduction in each kernel

    def run(self) -> None:
        self.slots = [{self.buffer_of[kernel.node]: 0} for kernel in self.fusion.roots]
        outer = current_origin.line
        try:
            for node in self.fusion.order:
                if node.op is not Ops.SINK:
                    current_origin.line = node.origin  # new nodes get the source location of the node
                    self._body(node)
        finally:
            current_origin.line = outer

    def _body(self, node: UOp) -> None:
        number = self.fusion.kernel_of.get(node)
        if number is not None:
            self._finish(node, number)
        elif node in self.fusion.row_buffers:
            self._keep(node, self.fusion.row_buffers[node])
            return
        for use in self.fusion.uses.get(node, ()):
            key = (node, use)
            if node in self.buffer_of:
                self.values[key] = self._load(node, use)
            elif key in self.fusion.source_uses or node.op in (Ops.CONST, Ops.IOTA, Ops.VARIABLE):
                self.values[key] = self._value(node, use)
                if node.origin and node.op.group is not OpGroup.MOVEMENT and node.op is not Ops.CONST:
                    self.origins.setdefault(use.kernel, []).append(node.origin)
                    if node.op is Ops.REDUCE:
                        self.reduced[use.kernel] = node.origin

    def _keep(self, node: UOp, kept: RowBuffer) -> None:
        """Fill a row buffer in its own loops; every use reads it from there."""
        sizes = tuple(node.shape[axis] for axis in kept.axes)
        memory = UOp(Ops.LOCAL, node.dtype, kept.around, (str(kept.loops[0].arg[0]), int(static((numel(sizes),))[0])))
        index = UOp(Ops.INDEX, node.dtype, (memory, self.fusion.index_map.flat(kept.loops, sizes)))
        store = UOp(Ops.STORE, dtypes.void, (index, self._value(node, kept.use)))
        filled = UOp(Ops.AFTER, node.dtype, (memory, store, *kept.loops), 1)
        for use in self.fusion.uses[node]:
            here = self.fusion.index_map.flat(tuple(use.indices[axis] for axis in kept.axes), sizes)
            self.values[node, use] = UOp(Ops.LOAD, node.dtype, (UOp(Ops.INDEX, node.dtype, (filled, here)),))

    def _load(self, node: UOp, use: Use) -> UOp:
        memory, index = self._memory(node, use.kernel), self.fusion.index_map.flat(use.indices, node.shape)
        low, high = index.bounds
        is_inside = use.gate is TRUE or (low >= 0 and high < memory.arg[-1])  # values read outside are not used
        gate = () if is_inside else (use.gate,)
        return UOp(Ops.LOAD, node.dtype, (UOp(Ops.INDEX, node.dtype, (memory, index, *gate)),))

    def _value(self, node: UOp, use: Use) -> UOp:
        match node.op:
            case Ops.CONST | Ops.VARIABLE:
                return node
            case Ops.IOTA:
                return use.indices[0].cast(node.dtype)
        below = self.fusion.source_uses[node, use]
        src = [self.values[s, u] for s, u in zip(node.src, below, strict=False) if u is not None]
        if node.op.group is OpGroup.MOVEMENT:
            gated = below[0] is not None and below[0].gate is not use.gate
            return below[0].gate.where(src[0], 0) if gated and below[0] is not None else src[0]
        match node.op:
            case Ops.REDUCE:
                return reduction(node.arg[0], src[0], self.fusion.reduce_loops[node, use])
            case Ops.ASSIGN if node not in self.targets:
                return src[1] if node.arg is None else region_gate(node, use.indices)[0].where(src[1], src[0])
            case Ops.TAKE | Ops.COPY | Ops.CHECK | Ops.WAIT | Ops.DETACH | Ops.CONTIGUOUS | Ops.ASSIGN:
                return src[0]
            case Ops.CDIV | Ops.CMOD:
                return UOp(node.op, node.dtype, (src[0], _divisor(*src)))
        return UOp(node.op, node.dtype, tuple(src))

    def _finish(self, node: UOp, number: int) -> None:
        """Build the kernel of a node: a STORE of its value at its index, with locally numbered buffers."""
        if node.op is Ops.COPY:
            return
        if node.op is Ops.ROUTINE:
            self._call(node, number)
            return
        kernel = self.fusion.roots[number]
        use = Use(number, kernel.index, TRUE)
        value = self._value(node, use)
        indices = kernel.index
        if node in self.targets and node.arg is not None:
            indices = tuple(i * step + start for i, (start, _, step) in zip(indices, node.arg, strict=True))
        target = UOp(
            Ops.INDEX, node.dtype, (self._memory(node, number), self.fusion.index_map.flat(indices, node.shape))
        )
        ast = UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (target, value)),))
        if kernel.has_gathers:
            ast = _insert_taken(ast, self.fusion, self.values)
        ast, slots = _finished(ast, kernel.loops)
        self._add(node, number, ast, slots)

    def _call(self, node: UOp, number: int) -> None:
        """Build the kernel of a routine: its node, which reads from the first element of each source on."""
        out = UOp(Ops.INDEX, node.dtype, (self._memory(node, number), index_const(0)))
        read = [UOp(Ops.INDEX, s.dtype, (self._memory(memory_base(s), number), index_const(0))) for s in node.src]
        value = node.replace(src=tuple(UOp(Ops.LOAD, index.dtype, (index,)) for index in read))
        ast, slots = numbered(UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (out, value)),)))
        name, _, batch, _, *sizes = node.arg
        ast = ast.replace(arg=KernelInfo(f"{name}_{'x'.join(map(str, (batch, *sizes)))}", ()))
        self._add(node, number, ast, slots)

    def _add(self, node: UOp, number: int, ast: UOp, slots: tuple[int, ...]) -> None:
        buffers = list(self.slots[number])
        used = tuple(buffers[slot] for slot in slots)
        first = [self.reduced.get(number) if node.op is not Ops.REDUCE else None, node.origin]  # most of its work
        origins = distinct([*filter(None, first), *self.origins.get(number, [])])
        self.kernels[node] = Kernel.of(ast, used, (self.buffer_of[node],), self.device_of[node], origins)

    def _memory(self, node: UOp, kernel: int) -> UOp:
        """The buffer of a node in the body of a kernel: numbered as that meets them, so that equal layers are equal."""
        slots = self.slots[kernel]
        slot = slots.setdefault(self.buffer_of[node], len(slots))
        return UOp(Ops.PARAM, node.dtype, (), (slot, *_extent(node)))


def _divisor(a: UOp, b: UOp) -> UOp:
    """`b` where the divide instruction takes it, else 1: idle lanes hold 0, and a WHERE computes both branches."""
    bad = b.eq(0)
    if a.dtype.min:
        bad = bad | (b.eq(-1) & a.eq(int(a.dtype.min)))
    return bad.where(1, b)


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
        found = [node for node in ast.toposort() if node in fusion.gathers]
        if not found:
            return ast
        table: dict[UOp, UOp] = {}
        for stand_in in found:
            index_node, index_use, size = fusion.gathers[stand_in]
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

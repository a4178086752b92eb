"""Kernels in order: producers before readers, readers of an old value before the kernel that overwrites it.

A kernel that frees more memory than it takes runs as soon as it can. So the gradient of a weight is computed before the
backward step of the next layer.

When: once all kernels are built. Guarantees: kernels of one device run in a row where the order allows it. Tests:
tests/compiler/graph/test_order_kernels.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from kernmill.ir import Copy, Item, Ops, UOp, numel, static

from .bases import data_below, memory_base
from .build_kernels import BuiltKernels
from .fuse import Fusion

__all__ = ["OrderedKernels", "order_kernels"]


@dataclass(slots=True)
class OrderedKernels:
    """The launches in order, and what decided it.

    `is_stuck`: the waits form a cycle; `find_hazards` then refuses an assignment in it.
    """

    items: list[Item] = field(default_factory=list[Item])
    reads: dict[UOp, set[UOp]] = field(default_factory=dict["UOp", "set[UOp]"])  # stored node -> nodes it reads
    readers: dict[UOp, list[UOp]] = field(default_factory=dict["UOp", "list[UOp]"])  # node -> stored nodes that read it
    waits: dict[UOp, set[UOp]] = field(default_factory=dict["UOp", "set[UOp]"])  # stored node -> those that run before
    is_stuck: bool = False

    def readers_of_old(self, node: UOp) -> list[UOp]:
        """Return the kernels that read what an assignment in place overwrites."""
        return self.readers.get(memory_base(node.src[0]), [])


def order_kernels(
    fusion: Fusion,
    built: BuiltKernels,
    targets: Mapping[UOp, UOp],
    device_of: Mapping[UOp, str],
    results: Collection[UOp] = (),
) -> OrderedKernels:
    """Return kernels and copies in an order in which they can run. `results` are not intermediates."""
    order = OrderedKernels()
    order.reads = {k.node: data_below(k.node, built.buffer_of) for k in fusion.roots}
    for node, below in order.reads.items():
        for read in below:
            order.readers.setdefault(read, []).append(node)
    order.waits = {node: {s for s in below if s in order.reads} for node, below in order.reads.items()}
    for node in targets:
        order.waits[node].update(reader for reader in order.readers_of_old(node) if reader is not node)
    nodes = [k.node for k in reversed(fusion.roots)]  # the ready kernel that comes first in this list runs first
    number = {node: n for n, node in enumerate(nodes)}
    users: dict[UOp, list[UOp]] = {}
    for node, needed in order.waits.items():
        for needs in needed:
            users.setdefault(needs, []).append(node)
    missing = {node: len(needed) for node, needed in order.waits.items()}
    queues = {node: "" if node.op is Ops.COPY else device_of[node] for node in nodes}  # copies interrupt a device
    memory = _Memory(order, number, {*targets, *results})
    ready = _Ready()

    def add(node: UOp) -> None:
        ready.add(number[node], queues[node], frees=memory.is_freed_by(node))

    for node in nodes:
        if not missing[node]:
            add(node)
    pending = dict.fromkeys(nodes)
    while pending:
        first = ready.take()
        if first is not None:
            node = nodes[first]
        else:
            order.is_stuck, node = True, next(iter(pending))
        if node not in pending:
            continue
        del pending[node]
        for n in memory.run(node):
            if nodes[n] in pending and missing[nodes[n]] <= 0:
                add(nodes[n])
        for user in users.get(node, ()):
            missing[user] -= 1
            if not missing[user]:
                add(user)
        loops = fusion.roots[fusion.kernel_of[node]].loops
        if all(loop.src[0].bounds != (0, 0) for loop in loops):  # else there is nothing to compute
            order.items.append(_item(node, built))
    return order


def _item(node: UOp, built: BuiltKernels) -> Item:
    if node.op is Ops.COPY:
        return Copy(built.buffer_of[memory_base(node.src[0])], built.buffer_of[node])
    return built.kernels[node]


class _Memory:
    """The intermediates that pending kernels still read. `apart`: nodes of other kinds."""

    def __init__(self, order: OrderedKernels, number: Mapping[UOp, int], apart: Collection[UOp]) -> None:
        self._reads = {node: [s for s in below if s in order.reads and s not in apart]
                       for node, below in order.reads.items()}  # fmt: skip
        self._bytes = {node: 0 if node in apart else _size_bytes(node) for node in order.reads}
        self._number = number
        self._count: dict[UOp, int] = {}
        self._sum: dict[UOp, int] = {}  # of the readers' numbers: when one is left, its number
        for node, reads in self._reads.items():
            for s in reads:
                self._count[s] = self._count.get(s, 0) + 1
                self._sum[s] = self._sum.get(s, 0) + number[node]

    def is_freed_by(self, node: UOp) -> bool:
        """True if the node is the last reader of more bytes than it writes."""
        return sum(self._bytes[s] for s in self._reads[node] if self._count[s] == 1) > self._bytes[node]

    def run(self, node: UOp) -> list[int]:
        """Note that a kernel has run; return the numbers of those that are the last reader of something now."""
        last = []
        for s in self._reads[node]:
            self._count[s] -= 1
            self._sum[s] -= self._number[node]
            if self._count[s] == 1:
                last.append(self._sum[s])
        return last


def _size_bytes(node: UOp) -> int:
    return int(static((numel(node.shape),))[0]) * node.dtype.size_bytes


class _Ready:
    """Kernels whose sources are computed, by number.

    Those that free memory come first, then kernels of the device that the last one ran on, then copies: so a device
    runs many kernels in a row. A kernel may be added again when it frees memory.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[int]] = {}  # by device; "": copies
        self.freeing: dict[str, list[int]] = {}
        self.device = ""

    def add(self, number: int, device: str, *, frees: bool) -> None:
        heappush((self.freeing if frees else self.waiting).setdefault(device, []), number)

    def take(self) -> int | None:
        """The next one, which may have been taken before; None if none is ready."""
        for device in (self.device, ""):
            for group in (self.freeing, self.waiting):
                if found := group.get(device):
                    return heappop(found)
        full = [(numbers[0], device) for device, numbers in self.waiting.items() if numbers]
        full += [(numbers[0], device) for device, numbers in self.freeing.items() if numbers]
        if not full:
            return None
        self.device = min(full)[1]
        return self.take()

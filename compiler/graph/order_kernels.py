"""Kernels in order: producers before readers, readers of an old value before the kernel that overwrites it.

When: once all kernels are built. Guarantees: kernels of one device run in a row where the order allows it. Tests:
tests/compiler/graph/test_order_kernels.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from kernmill.ir import Copy, Item, Ops, UOp

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
    fusion: Fusion, built: BuiltKernels, targets: Mapping[UOp, UOp], device_of: Mapping[UOp, str]
) -> OrderedKernels:
    """Return kernels and copies in an order in which they can run."""
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
    ready = _Ready()
    for n, node in enumerate(nodes):
        if not missing[node]:
            ready.add(n, queues[node])
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
        for user in users.get(node, ()):
            missing[user] -= 1
            if not missing[user]:
                ready.add(number[user], queues[user])
        loops = fusion.roots[fusion.kernel_of[node]].loops
        if all(loop.src[0].bounds != (0, 0) for loop in loops):  # else there is nothing to compute
            order.items.append(_item(node, built))
    return order


def _item(node: UOp, built: BuiltKernels) -> Item:
    if node.op is Ops.COPY:
        return Copy(built.buffer_of[memory_base(node.src[0])], built.buffer_of[node])
    return built.kernels[node]


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

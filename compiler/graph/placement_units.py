"""What placement decides on: units, each about one kernel, and the values that pass between them.

A unit is a node that is stored (a reduction, a result, a value with several readers) with the elementwise nodes that
only it reads. A device border inside a unit is never wanted: it would copy the terms of a sum instead of the sum.
Movement ops are views of the value below them. Constants, and what is computed from constants alone without a
reduction, are free: every device makes them where it reads them. Tests: tests/compiler/graph/test_place.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from kernmill.ir import FUNCTION_COST, KernelWork, OpGroup, Ops, Pin, UOp, chain_cost, dtypes, pin_of, static

__all__ = ["PlacementUnit", "Value", "base_of", "find_units", "is_view", "size_bytes", "smallest"]

_SOURCES = frozenset({Ops.CONST, Ops.IOTA, Ops.VARIABLE})
_STORED = frozenset({Ops.REDUCE, Ops.ASSIGN, Ops.COPY, Ops.CONTIGUOUS, Ops.TAKE})
_VIEWS = frozenset({op for op in Ops.rows() if op.group is OpGroup.MOVEMENT} | {Ops.DETACH})


@dataclass(eq=False, slots=True)
class Value:
    """A result that units read. It is copied at most once to each device. `node` is what is copied: the smallest of the
    views between producer and reader."""

    node: UOp
    producer: PlacementUnit
    readers: list[PlacementUnit] = field(default_factory=list["PlacementUnit"])
    size_bytes: int = 0  # of one copy


@dataclass(eq=False, slots=True)
class PlacementUnit:
    """Nodes that run on one device. A leaf is a unit without work, whose device is given."""

    head: UOp
    number: int
    nodes: list[UOp] = field(default_factory=list[UOp])
    inputs: dict[UOp, Value] = field(default_factory=dict[UOp, Value])  # by the source that is read
    work: float = 0.0  # additions, or what takes as long
    functions: float = 0.0  # exponentials and the like, in additions
    products: float = 0.0  # multiply-adds of matrix products
    sums: float = 0.0  # terms of other reductions
    read_bytes: int = 0
    crossed_bytes: int = 0  # of these: read with another last axis
    pinned: str | None = None
    why: str = ""  # the reason of `pinned`
    pin: Pin | None = None  # the pattern of PIN that pinned it

    @property
    def is_leaf(self) -> bool:
        """True if the unit is memory that is given."""
        return self.head.op is Ops.PARAM

    @property
    def kernel_work(self) -> KernelWork:
        """Return the work of the unit as a kernel."""
        crossed = 0.0 if self.products or self.sums else 2.0 * self.crossed_bytes
        return KernelWork(max(self.work, 0.0), self.functions, self.products, self.sums, self.size_bytes, crossed)

    @property
    def size_bytes(self) -> int:
        """Bytes that the unit reads and writes."""
        return self.read_bytes + size_bytes(self.head)


def size_bytes(node: UOp) -> int:
    """Bytes of a value; symbolic sizes count at their greatest."""
    return prod(static(node.shape)) * node.dtype.size_bytes


def smallest(path: Sequence[UOp]) -> UOp:
    """Return the smallest of views and their value, the last; of equals the lowest: more readers share it."""
    return path[0] if len(path) == 1 else min(reversed(path), key=size_bytes)


def is_view(node: UOp) -> bool:
    """True if the node shows values of its source."""
    return node.op in _VIEWS


def find_units(
    roots: Sequence[UOp], devices: Sequence[str], pins: Sequence[Pin] = ()
) -> tuple[list[PlacementUnit], list[Value], dict[UOp, PlacementUnit]]:
    """The units in order of computation, the values between them, and the unit of each node that is computed.

    `devices[i]` is where PARAM slot i is.
    """
    order = UOp(Ops.SINK, dtypes.void, tuple(roots)).toposort()[:-1]
    free = _free(order)
    heads = _heads(order, roots, free)
    units: list[PlacementUnit] = []
    unit_of: dict[UOp, PlacementUnit] = {}
    for node in order:
        if node in free or is_view(node):
            continue
        if node.op is Ops.PARAM or heads[node] is node:
            unit = PlacementUnit(node, len(units))
            units.append(unit)
            unit_of[node] = unit
    for node in order:
        if node not in free and not is_view(node) and node.op is not Ops.PARAM:
            unit_of[node] = unit = unit_of[heads[node]]
            unit.nodes.append(node)
    values: dict[UOp, Value] = {}
    for unit in units:
        _pin(unit, devices, pins)
        for node in unit.nodes:
            _count(unit, node, unit_of, free)
            for source in node.src:
                _connect(unit, source, unit_of, free, values)
    return units, list(values.values()), unit_of


def _free(order: Sequence[UOp]) -> set[UOp]:
    """The nodes that every device makes where it reads them."""
    free: set[UOp] = set()
    for node in order:
        if node.op in _SOURCES or (node.src and node.op not in _STORED and free.issuperset(node.src)):
            free.add(node)
    return free


def _heads(order: Sequence[UOp], roots: Sequence[UOp], free: set[UOp]) -> dict[UOp, UOp]:
    """For each node the head of its unit: itself if it is stored, or the head of all that read it."""
    heads: dict[UOp, UOp] = {}
    readers: dict[UOp, set[UOp]] = {}  # of a node: the heads of what reads it, also through views
    stored = {base_of(root) for root in roots}
    for node in reversed(order):
        if node in free:
            continue
        read_by = readers.pop(node, set())
        if is_view(node):
            readers.setdefault(node.src[0], set()).update(read_by)
            continue
        alone = next(iter(read_by)) if len(read_by) == 1 and node.op not in _STORED and node not in stored else None
        heads[node] = head = alone or node
        for source in node.src:
            readers.setdefault(source, set()).add(head)
    return heads


def base_of(node: UOp) -> UOp:
    """Return the node that views show."""
    while is_view(node):
        node = node.src[0]
    return node


def _pin(unit: PlacementUnit, devices: Sequence[str], pins: Sequence[Pin]) -> None:
    """Note that a unit has no choice: memory stays where it is, and so do writes into it, copies, and what the user
    pinned by a pattern."""
    head = unit.head
    if head.op is Ops.PARAM:
        unit.pinned, unit.why = devices[int(head.arg[0])], "its memory is there"
    elif head.op is Ops.COPY:
        unit.pinned, unit.why = str(head.arg), "pinned by .to"
    elif head.op is Ops.ASSIGN and (old := base_of(head.src[0])).op is Ops.PARAM:
        unit.pinned, unit.why = devices[int(old.arg[0])], "it writes to memory there"
    elif (pin := pin_of(pins, head.origin)) is not None:
        unit.pinned, unit.pin, unit.why = pin.device, pin, f"pinned by PIN={pin.pattern}={pin.device}"


def _count(unit: PlacementUnit, node: UOp, unit_of: dict[UOp, PlacementUnit], free: set[UOp]) -> None:
    """Add the work of a node to that of its unit."""
    if node.op is Ops.REDUCE:
        terms = float(prod(static(node.src[0].shape)))
        body = node.src[0]
        while body.op is Ops.CAST:
            body = body.src[0]
        if body.op is Ops.MUL and unit_of.get(body) is unit and not any(s in free for s in body.src):
            unit.products += terms
            unit.work -= terms * body.op.cost  # the multiplication is part of the product
        else:
            unit.sums += terms * chain_cost(node.arg[0])
    elif node.op.is_elementwise:
        cost = float(prod(static(node.shape))) * node.op.cost
        if node.op.cost >= FUNCTION_COST:
            unit.functions += cost
        else:
            unit.work += cost


def _connect(
    unit: PlacementUnit, source: UOp, unit_of: dict[UOp, PlacementUnit], free: set[UOp], values: dict[UOp, Value]
) -> None:
    """Note what a unit reads from another one: a copy is one of the smallest view on the way."""
    if source in free or source in unit.inputs:
        return
    path = [source]
    while is_view(path[-1]):
        path.append(path[-1].src[0])
    producer = unit_of.get(path[-1])
    if producer is None or producer is unit:
        return
    node = smallest(path)
    if node not in values:
        values[node] = Value(node, producer, size_bytes=size_bytes(node))
    value = values[node]
    unit.inputs[source] = value
    if unit not in value.readers:
        value.readers.append(unit)
        unit.read_bytes += value.size_bytes
        if any(view.op is Ops.PERMUTE and view.arg[-1] != len(view.arg) - 1 for view in path):
            unit.crossed_bytes += value.size_bytes

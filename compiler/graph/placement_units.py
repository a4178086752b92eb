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
from typing import NamedTuple

from kernmill.ir import PAGE_BYTES, KernelWork, OpGroup, Ops, Pin, UOp, chain_cost, dtypes, pin_of, static

__all__ = ["PlacementUnit", "Value", "base_of", "find_units", "is_view", "size_bytes"]

_SOURCES = frozenset({Ops.CONST, Ops.IOTA, Ops.VARIABLE})
_STORED = frozenset({Ops.PARAM, Ops.REDUCE, Ops.ASSIGN, Ops.COPY, Ops.CONTIGUOUS, Ops.TAKE})
_VIEWS = frozenset({op for op in Ops.rows() if op.group is OpGroup.MOVEMENT} | {Ops.DETACH})
_NEVER_FEWER = frozenset({Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.PAD, Ops.DETACH})  # elements than the source's


class View(NamedTuple):
    """The value that a movement node shows."""

    base: UOp
    smallest: UOp  # of the views between base and node, and these two; of equals the lowest: more readers share it
    is_crossed: bool  # its last axis is another one than the base's


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
    long_products: float = 0.0  # of these: down columns of long rows
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
        return KernelWork(
            max(self.work, 0.0), self.functions, self.products, self.sums, self.size_bytes, crossed,
            long_products=self.long_products,
        )  # fmt: skip

    @property
    def size_bytes(self) -> int:
        """Bytes that the unit reads and writes."""
        return self.read_bytes + size_bytes(self.head)


def size_bytes(node: UOp) -> int:
    """Bytes of a value; symbolic sizes count at their greatest."""
    return prod(static(node.shape)) * node.dtype.size_bytes


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
    views = _views(order, free)
    heads = _heads(order, roots, free)
    units: list[PlacementUnit] = []
    of_head: dict[UOp, PlacementUnit] = {}
    for node, head in heads.items():
        if head is node:
            of_head[head] = unit = PlacementUnit(head, len(units))
            units.append(unit)
    unit_of: dict[UOp, PlacementUnit] = {}
    for node, head in heads.items():
        unit_of[node] = unit = of_head[head]
        if node.op is not Ops.PARAM:
            unit.nodes.append(node)
    values: dict[UOp, Value] = {}
    for unit in units:
        _pin(unit, devices, pins)
        for node in unit.nodes:
            _count(unit, node, unit_of, free)
            for source in node.src:
                if source not in free and unit_of.get(source) is not unit and source not in unit.inputs:
                    _connect(unit, source, unit_of, views, values)
    return units, list(values.values()), unit_of


def _free(order: Sequence[UOp]) -> set[UOp]:
    """The nodes that every device makes where it reads them."""
    free: set[UOp] = set()
    for node in order:
        if node.op in _SOURCES or (node.src and node.op not in _STORED and free.issuperset(node.src)):
            free.add(node)
    return free


def _views(order: Sequence[UOp], free: set[UOp]) -> dict[UOp, View]:
    """Find the value below each movement node, and the smallest view on the way."""
    views: dict[UOp, View] = {}
    for node in order:
        if node.op in _VIEWS and node not in free:
            base, smallest, is_crossed = views.get(node.src[0]) or View(node.src[0], node.src[0], False)
            if node.op is Ops.PERMUTE:
                is_crossed = is_crossed or node.arg[-1] != len(node.arg) - 1
            elif node.op not in _NEVER_FEWER and size_bytes(node) < size_bytes(smallest):
                smallest = node
            views[node] = View(base, smallest, is_crossed)
    return views


def _heads(order: Sequence[UOp], roots: Sequence[UOp], free: set[UOp]) -> dict[UOp, UOp]:
    """For each node that is computed or given, in order, the head of its unit: itself if it is stored, or the head of
    all that read it."""
    heads: dict[UOp, UOp] = {}
    readers: dict[UOp, UOp | None] = {}  # of a node: the head of all that reads it, also through views; None: several
    stored = {base_of(root) for root in roots}
    for node in reversed(order):
        if node in free:
            continue
        head = readers.get(node)
        if node.op not in _VIEWS:
            if head is None or node.op in _STORED or node in stored:
                head = node
            heads[node] = head
        for source in node.src:
            readers[source] = head if readers.get(source, head) is head else None
    return dict(reversed(heads.items()))


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
            unit.long_products += terms if _has_long_rows(body, node.arg[1][-1]) else 0
            unit.work -= terms * body.op.cost  # the multiplication is part of the product
        else:
            unit.sums += terms * chain_cost(node.arg[0])
    elif node.op.is_elementwise:
        cost = float(prod(static(node.shape))) * node.op.cost
        if node.op.is_function:
            unit.functions += cost
        else:
            unit.work += cost


def _has_long_rows(product: UOp, reduced: int) -> bool:
    """True if an operand is read down the columns of long rows, and more than once."""
    terms, length = prod(static(product.shape)), static(product.shape)[reduced]
    for operand in product.src:
        node, axis = operand, reduced
        if not length * PAGE_BYTES <= size_bytes(base_of(operand)) < terms * operand.dtype.size_bytes:
            continue
        while is_view(node) and node.op not in (Ops.WINDOW, Ops.UNWINDOW):
            below = node.src[0]
            if node.op is Ops.PERMUTE:
                axis = node.arg[axis]
            elif node.op is Ops.RESHAPE:
                shape, same = static(below.shape), (static(node.shape)[axis], _elements_apart(node, axis))
                found = next((n for n, size in enumerate(shape) if (size, _elements_apart(below, n)) == same), None)
                if found is None:  # the axis is a part of one below
                    break
                axis = found
            node = below
        is_long = static(node.shape)[axis] > 1 and _elements_apart(node, axis) * node.dtype.size_bytes >= PAGE_BYTES
        if is_long and node.op is not Ops.WINDOW:
            return True
    return False


def _elements_apart(node: UOp, axis: int) -> int:
    """Elements from one entry of an axis to the next one, where views are not copied."""
    return prod(static(node.shape)[axis + 1 :])


def _connect(
    unit: PlacementUnit,
    source: UOp,
    unit_of: dict[UOp, PlacementUnit],
    views: dict[UOp, View],
    values: dict[UOp, Value],
) -> None:
    """Note what a unit reads from another one: a copy is one of the smallest view on the way."""
    view = views.get(source) or View(source, source, False)
    producer = unit_of[view.base]
    if producer is unit:
        return
    if view.smallest not in values:
        values[view.smallest] = Value(view.smallest, producer, size_bytes=size_bytes(view.smallest))
    value = values[view.smallest]
    unit.inputs[source] = value
    if not value.readers or value.readers[-1] is not unit:  # units come one after the other
        value.readers.append(unit)
        unit.read_bytes += value.size_bytes
        if view.is_crossed:
            unit.crossed_bytes += value.size_bytes

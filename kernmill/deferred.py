"""Recorded calls whose nodes are made when somebody asks for them.

A call of which `recorded.py` has the table gives a tensor with a `DeferredCall` and no node. The call has the table and
the operands, as nodes or as calls before it. `realize` finds the plan of an earlier equal tree of calls by the tables
and the memory below (runtime/known.py), and makes no node. Whoever reads `tensor.uop` gets the nodes that the method
would have made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple

from kernmill.ir import DType, Op, Ops, UOp, apart, current_origin, process_lock
from kernmill.runtime import Buffer, buffer_node, graph_key, remember_run, run_again

from .lazy import KNOWN

if TYPE_CHECKING:
    from .lazy import Lazy

__all__ = ["DeferredCall", "Step", "Table", "make_nodes", "node_of", "run_calls"]

_ALONE = 2  # references to a node that nobody else has: a local name's, and that of the counting call
_making = process_lock()


class Step(NamedTuple):
    """One node of a table."""

    op: Op
    dtype: DType
    arg: Any
    shape: tuple[int, ...]
    sources: tuple[int, ...]


class Table:
    """The nodes of a call. Two tables are equal only if they are one object."""

    __slots__ = ("device", "known", "last", "requires_grad", "steps")

    def __init__(
        self, steps: list[Step], device: str | None, requires_grad: bool, known: tuple[int, Any] | None = None
    ) -> None:
        self.steps, self.device, self.requires_grad = steps, device, requires_grad
        self.known = known  # the operand that the gradient of the result is given to, and its rule
        self.last = steps[-1]


def make_nodes(table: Table, operands: list[UOp]) -> UOp:
    """The node of a call; `operands` gets the nodes below it."""
    for step in table.steps:
        node = UOp(step.op, step.dtype, tuple([operands[number] for number in step.sources]), step.arg)
        node._shape = step.shape
        operands.append(node)
    made = operands.pop()
    if table.known is not None:
        KNOWN[made] = operands[table.known[0]], table.known[1]
    return made


class DeferredCall:
    """A recorded call. It has its operands until it has a node."""

    __slots__ = ("first_realize", "node", "operands", "origin", "own", "storage", "table")

    def __init__(self, table: Table, operands: list[Any], own: int) -> None:
        self.table, self.operands, self.own = table, operands, own
        self.origin = current_origin.line
        self.node: UOp | None = None
        self.storage: Buffer | None = None  # its values, computed before it had a node
        self.first_realize = 0  # number of the run that computed it first, maybe without keeping its values; 0: none

    def expand(self) -> UOp:
        """Its node, made now with those of the calls below unless it has one."""
        with _making:
            waiting = [self]
            while waiting:
                call = waiting[-1]
                below = (
                    []
                    if call.node is not None
                    else [o for o in call.operands if type(o) is DeferredCall and not o.node]
                )
                if below:
                    waiting += below
                    continue
                waiting.pop()
                if call.node is None:
                    call._expand()
        assert self.node is not None
        return self.node

    def _expand(self) -> None:
        storage, table = self.storage, self.table
        if storage is not None and not table.requires_grad:
            self.node = buffer_node(storage, table.last.shape)
            return
        nodes: list[Any] = [o.node if type(o) is DeferredCall else o for o in self.operands]
        count = len(nodes)
        line, current_origin.line = current_origin.line, self.origin
        try:
            made = make_nodes(table, nodes)
            if self.own:
                if getrefcount(made) == _ALONE:
                    made.own = self.own
                else:
                    made = apart(made, self.own > 1)
            made.was_named = 2 if made.was_named else 1
        finally:
            current_origin.line = line
        if self.first_realize:
            for node in (*nodes[count:], made):
                node.first_realize = node.first_realize or self.first_realize
        if storage is not None:
            made.storage = storage
            storage.makers.append(weakref.ref(made))
        self.node, self.operands = made, []

    def settle(self, buffer: Buffer) -> None:
        """Its values are in memory: without gradients it needs no operands any more."""
        self.storage = buffer
        if not self.table.requires_grad:
            self.operands = []


def node_of(tensor: Lazy, call: DeferredCall) -> UOp:
    """Give a tensor the node of its call."""
    with _making:
        node = tensor.__dict__.get("uop")
        if node is None:
            tensor.uop = node = call.expand()
            tensor._call = None
        return node


def run_calls(tensor: Lazy, call: DeferredCall, compute: Callable[[], Any]) -> bool:
    """Realize a tensor with a call. True if it has its memory now; False where the tree of calls cannot tell.

    `compute` realizes the nodes and returns the run, of which the plan is remembered for an equal tree.
    """
    if call.storage is not None:
        return True
    found = _tree(call)
    if found is None:
        return False
    key, bottoms, calls = found
    buffer = run_again(key, [node.storage for node in bottoms])
    if buffer is None:
        remember_run(key, bottoms, compute())
        return True
    number = graph_key.next_realize()
    for one in calls:
        one.first_realize = number
    call.settle(buffer)
    tensor._device = buffer.device
    return True


def _tree(root: DeferredCall) -> tuple[tuple[Any, ...], list[UOp], list[DeferredCall]] | None:
    """The key of a tree of calls, the nodes in memory below it, and the calls; None if there is more than that.

    The key has the table of each call and its operands. An operand is the position of an earlier call, or memory, with
    the nodes between the two.
    """
    key: list[Any] = []
    calls: dict[DeferredCall, int] = {}
    numbers: dict[UOp, int] = {}
    waiting = [root]
    while waiting:
        call = waiting[-1]
        if call in calls:
            waiting.pop()
            continue
        if call.first_realize:  # its values may be worth keeping
            return None
        operands = call.operands
        below = [
            o for o in operands if type(o) is DeferredCall and o not in calls and o.node is None and o.storage is None
        ]  # fmt: skip
        if below:
            waiting += below
            continue
        waiting.pop()
        key.append(call.table)
        for operand in operands:
            if type(operand) is DeferredCall:
                if (number := calls.get(operand)) is not None:
                    key.append(number)
                    continue
                operand = operand.node or operand.expand()
            node = operand
            while node.storage is None:
                op = node.op
                if op is Ops.RESHAPE:
                    key.append(node.shape)
                elif op is Ops.DETACH:
                    key.append(bool(node.arg))
                else:
                    return None
                node = node.src[0]
            storage = node.storage
            if type(storage) is not Buffer:
                return None
            key += (storage.device, storage.numel, node.dtype, node.shape, numbers.setdefault(node, len(numbers)))
        calls[call] = len(calls)
    return tuple(key), list(numbers), list(calls)

"""One walk over the expressions to compute: their order, their memory, and a key that equal graphs share.

The key (`structure`) holds nothing of one run: leaves are numbered, and so are the floats that the user's program
gives, which kernels take as arguments. `x * 0.3` and `x * 0.7` have the same key. Numbers that change the code stay in
the key: 0, 1, -1, infinities, nan, exponents, and divisors that are powers of two. So do numbers of our own methods.

An entry of the structure is one of

    (slot, dtype, shape, numel)        a leaf: memory that is given
    (CONST, dtype, None)               a number that is given
    (op, dtype, arg, source, ..)       an op; sources are positions of entries
    a UOp                              a node without sources, or a part of a leaf (runtime/plans/views.py)

The entries follow the positions of the roots. Tests: tests/runtime/plans/test_graph_key.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

from kernmill.ir import DType, Given, KernmillError, Ops, UOp, dtypes

from ..device import default_device
from ..memory.buffer import Buffer, Placeholder
from .views import opened

__all__ = ["NUMBER_DTYPES", "STALE", "GraphWalk", "Structure", "is_form", "is_number", "next_realize"]

Structure: TypeAlias = "tuple[Any, ...]"

STALE: Any = SimpleNamespace(device="nowhere")
"""The storage of a node whose memory an assignment has overwritten."""

_CONST, _DETACH, _PARAM = Ops.CONST, Ops.DETACH, Ops.PARAM
_WITH_CONSTANT = (Ops.POW, Ops.DIV)
_realizes = itertools.count(1)
_FORMS = frozenset({0.0, 1.0, -1.0, math.inf, -math.inf})
_FLOATS = frozenset({dtypes.float16, dtypes.float32, dtypes.float64})
NUMBER_DTYPES = _FLOATS | {dtype for dtype in dtypes.data if dtype.is_int}
"""The dtypes of numbers that kernels take as arguments."""


def next_realize() -> int:
    """The number of a new realize, from 1."""
    return next(_realizes)


def is_form(value: float) -> bool:
    """True if code that computes with this number is other code than with most numbers."""
    return value in _FORMS or value != value


def is_number(entry: Any) -> bool:
    """True if an entry of a structure is a number that each run gives."""
    return type(entry) is tuple and entry[0] is _CONST


class GraphWalk:
    """The graph of some roots above the memory that is given: leaves, and `parts` of them.

    `order` numbers the nodes, sources first. `numbers` are the values of the number entries, in their order, and
    `known` the inner nodes that an earlier realize than number `realize` has met: they are computed again. `fresh` are
    leaves of gradients that were not computed yet.
    With `is_exact` no number becomes an argument.

    Raises:
        KernmillError: an expression needs the old value of a tensor that was overwritten in place.
    """

    __slots__ = (
        "entries",
        "fixed",
        "fresh",
        "is_exact",
        "known",
        "leaves",
        "numbers",
        "ops",
        "order",
        "roots",
        "storages",
    )

    def __init__(self, roots: Sequence[UOp], parts: Mapping[UOp, Buffer], *, is_exact: bool, realize: int) -> None:
        self.roots, self.is_exact = roots, is_exact
        self.order: dict[UOp, int] = {}
        self.leaves: list[UOp] = []
        self.storages: list[Buffer] = []
        self.numbers: list[tuple[DType, float]] = []
        self.entries: list[Any] = []
        self.known: list[UOp] = []
        self.fresh: list[UOp] = []
        self.ops: set[Any] = set()
        self.fixed = None if is_exact else {_unshaped(root) for root in roots}
        self._walk(parts, realize)

    def _walk(self, parts: Mapping[UOp, Buffer], realize: int) -> None:
        """Visit every node once. Constants in `fixed` stay in the key; None: all of them."""
        order, entries, ops, known, fixed = self.order, self.entries, self.ops, self.known, self.fixed
        stack = list(self.roots)[::-1]
        while stack:
            node = stack[-1]
            if node in order:
                stack.pop()
                continue
            src = node.src
            if node.storage is not None:
                entry: Any = self._leaf(node, node.storage)
            elif not src:
                entry = node if fixed is None or node.op is not _CONST or node in fixed else self._constant(node)
            elif parts and node in parts:
                slot, _, _, numel = self._leaf(node, parts[node])
                entry = opened(node, UOp(_PARAM, node.dtype, (), (slot, numel)))
            else:
                if fixed is not None and node.op in _WITH_CONSTANT:
                    fixed.update(_kept_constants(node))
                is_ready = True
                for s in src:  # most are there: a list of those that are not takes longer
                    if s not in order:
                        is_ready = False
                        break
                if not is_ready:
                    stack += [s for s in src if s not in order][::-1]
                    continue
                op = node.op
                ops.add(op)
                arg = node.arg
                if op is _DETACH and arg:
                    arg = 1  # leaves are counted, as in `closed`
                    if _unshaped(src[0]).storage is None:
                        self.fresh.append(node)
                if len(src) == 1:
                    entry = op, node.dtype, arg, order[src[0]]
                else:
                    entry = (op, node.dtype, arg, *[order[s] for s in src])
                if not node.first_realize:
                    node.first_realize = realize
                elif node.first_realize != realize:
                    known.append(node)
            order[node] = len(entries)
            entries.append(entry)
            stack.pop()

    def _leaf(self, node: UOp, storage: Any) -> tuple[Any, ...]:
        if storage is STALE:
            raise KernmillError(
                "this expression needs the old value of a tensor that was overwritten in place. "
                "Realize the expression before assigning, or keep the old values with .clone()."
            )
        if type(storage) is Placeholder:
            raise KernmillError(storage.message)
        self.leaves.append(node)
        self.storages.append(storage)
        return len(self.leaves) - 1, node.dtype, node.shape, storage.numel

    def _constant(self, node: UOp) -> Any:
        value = node.arg
        if type(value) is not Given or node.dtype not in _FLOATS or is_form(value):
            return node
        self.numbers.append((node.dtype, value))
        return _CONST, node.dtype, None

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the device of each leaf, then of each number."""
        found = tuple([storage.device for storage in self.storages])
        if not self.numbers:
            return found
        home = found[0] if found else default_device()
        return found + (home,) * len(self.numbers)

    @property
    def structure(self) -> Structure:
        """The key: the positions of the roots, then the entries."""
        order = self.order
        return (*[order[root] for root in self.roots], *self.entries)


def _unshaped(node: UOp) -> UOp:
    """Return the node that a root has its values from. A constant that is itself a result cannot be an argument of a
    kernel."""
    while node.src and node.op in (Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS):
        node = node.src[0]
    return node


def _kept_constants(node: UOp) -> Iterable[UOp]:
    """Exponents, and divisors that are powers of two: the code that computes with them depends on their value."""
    right = node.src[1]
    while right.op in (Ops.EXPAND, Ops.RESHAPE):
        right = right.src[0]
    if right.op is not _CONST or not right.dtype.is_float or not math.isfinite(right.arg):
        return ()
    return (right,) if node.op is Ops.POW or abs(math.frexp(right.arg)[0]) == 0.5 else ()

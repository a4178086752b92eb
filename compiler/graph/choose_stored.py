"""Nodes that get memory whatever fusion decides: results, sources of copies, routines and waits, CONTIGUOUS, checks.

When: before fusion, which starts from them. Tests: tests/compiler/graph/test_choose_stored.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernmill.ir import Ops, UOp, dtypes

from . import why_fused as why
from .bases import memory_base
from .why_fused import Why

__all__ = ["StoredNodes", "choose_stored"]


class StoredNodes(NamedTuple):
    """Nodes with memory: those that are computed, each with the reason; those that are read at the end, and the
    conditions to check."""

    nodes: dict[UOp, Why]
    results: list[UOp]
    checks: list[UOp]  # the CHECK nodes

    @property
    def sink(self) -> UOp:
        """Return a SINK over everything that the kernels of the graph compute."""
        return UOp(Ops.SINK, dtypes.void, (*self.results, *(memory_base(check.src[1]) for check in self.checks)))


def choose_stored(roots: Sequence[UOp], order: Iterable[UOp]) -> StoredNodes:
    """Return the nodes that get memory, for the roots of a graph and all its nodes."""
    results = [memory_base(root) for root in roots]
    nodes, checks = dict.fromkeys(results, why.RESULT), list[UOp]()
    for node in order:
        if node.op is Ops.CHECK:
            checks.append(node)
            nodes[memory_base(node.src[1])] = why.CHECKED
        elif node.op is Ops.CONTIGUOUS:
            nodes.setdefault(memory_base(node), why.CONTIGUOUS)
        elif node.op is Ops.ASSIGN:
            nodes[node] = why.ASSIGNED
        elif node.op is Ops.COPY:
            nodes[node] = nodes[memory_base(node.src[0])] = why.COPIED  # reshapes of a source have no separate memory
        elif node.op is Ops.WAIT:
            nodes.update((memory_base(source), why.WAITED) for source in node.src)
        elif node.op is Ops.ROUTINE:  # it reads its sources as a whole
            nodes.update((read, why.ROUTINE) for read in (node, *map(memory_base, node.src)))
    return StoredNodes({node: of for node, of in nodes.items() if node.op is not Ops.PARAM}, results, checks)

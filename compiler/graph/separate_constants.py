"""What depends on no data is made on each device that reads it; a result of that kind is made once and copied.

When: after placement, before fusion, in graphs over several devices. Why there: a node has one buffer, on one device,
and fusion may store what several kernels read. A kernel of another device could not
address that buffer. Guarantees: a node without data has readers on one device.
Tests: tests/compiler/graph/test_separate_constants.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernmill.ir import Ops, UOp, dtypes, with_sources

from .place import Placed

__all__ = ["separate_constants"]

_SAME_VALUES = frozenset({Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS, Ops.CHECK, Ops.WAIT})


def separate_constants(placed: Placed, devices: Sequence[str], default_device: str) -> Placed:
    """Give each device nodes of its own for what it computes from constants; PARAM slot i is on devices[i]."""
    roots = placed.roots
    order = UOp(Ops.SINK, dtypes.void, tuple(roots)).toposort()[:-1]
    device_of: dict[UOp, str | None] = {}
    for node in order:
        if node.op is Ops.PARAM:
            device_of[node] = devices[int(node.arg[0])]
        elif node.op is Ops.COPY:
            device_of[node] = str(node.arg)
        else:
            device_of[node] = placed.devices.get(node) or next((d for s in node.src if (d := device_of[s])), None)
    if not {*device_of.values()} - {None, default_device}:
        return placed
    results = {base for root in roots if device_of[base := _base(root)] is None}
    separate = _Separate(device_of, results)
    new: dict[UOp, UOp] = {}
    for node in order:
        device = device_of[node]
        if device in (None, default_device) or node.op is Ops.COPY:
            new[node] = with_sources(node, tuple([new[s] for s in node.src]))
        else:
            src = [new[s] if device_of[s] else separate.read(s, str(device)) for s in node.src]
            new[node] = with_sources(node, tuple(src))
    homes = {new.get(node, node): device for node, device in placed.devices.items()}
    return replace(placed, roots=[new[root] for root in roots], devices=homes)


def _base(node: UOp) -> UOp:
    while node.op in _SAME_VALUES:
        node = node.src[0]
    return node


class _Separate:
    """Nodes without data, by device."""

    def __init__(self, device_of: Mapping[UOp, str | None], results: set[UOp]) -> None:
        self.device_of, self.results = device_of, results
        self.at: dict[tuple[UOp, str], UOp] = {}

    def read(self, node: UOp, device: str) -> UOp:
        """The node for this device."""
        path = [node]
        while path:
            last = path[-1]
            waiting = [] if last in self.results else [s for s in last.src if (s, device) not in self.at]
            if waiting:
                path += waiting
                continue
            self.at.setdefault((last, device), self._made(last, device))
            path.pop()
        return self.at[node, device]

    def _made(self, node: UOp, device: str) -> UOp:
        if node in self.results and node.op is not Ops.CONST:
            made = UOp(Ops.COPY, node.dtype, (node,), device)
        elif node.src:
            return with_sources(node, tuple([self.at[s, device] for s in node.src]))
        elif node.op is Ops.CONST:
            return node
        else:
            made = UOp(Ops.DETACH, node.dtype, (node,), device)  # another node of the same values
        made.origin = made.origin or node.origin
        return made

"""The device of each node: that of its data, of its placement, or of a copy.

When: after placement. Guarantees: constants are on the device that reads them, and constant results on the default one.
Tests: tests/compiler/graph/test_find_devices.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernmill.ir import Ops, UOp, dtypes

from .bases import memory_base

__all__ = ["find_devices"]


def find_devices(
    roots: Sequence[UOp], devices: Sequence[str], placed: Mapping[UOp, str], default_device: str
) -> dict[UOp, str]:
    """Return the device of each node of a closed graph, whose PARAM slot i is on devices[i], in topological order."""
    order = UOp(Ops.SINK, dtypes.void, tuple(roots)).toposort()
    device_of: dict[UOp, str | None] = {}
    for node in order:
        if node.op is Ops.PARAM:
            device_of[node] = devices[int(node.arg[0])]
        elif node.op is Ops.COPY:
            device_of[node] = node.arg
        else:
            sources = (device for s in node.src if (device := device_of[s]))
            device_of[node] = placed.get(node) or next(sources, None)
    results = {memory_base(root) for root in roots}  # those of constants are on the default device
    for node in reversed(order):  # a value computed from constants is computed on the device that reads it
        device = None if node.op is Ops.COPY else device_of[node]
        for s in node.src if device is not None else ():
            device_of[s] = device_of[s] or (None if s in results else device)
    return {node: device or default_device for node, device in device_of.items()}

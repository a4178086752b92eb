"""Bases: the node that owns the memory of a view, and the data that a node reads."""

from __future__ import annotations

from collections.abc import Container

from kernmill.ir import OpGroup, Ops, UOp

__all__ = ["data_below", "down_to_base", "memory_base"]

_TRANSPARENT = frozenset({Ops.RESHAPE, Ops.DETACH, Ops.CHECK, Ops.WAIT, Ops.CONTIGUOUS})


def down_to_base(node: UOp) -> list[UOp]:
    """Return the node and the nodes below it with its values in its order; the last one owns the memory."""
    path = [node]
    while path[-1].op in _TRANSPARENT and not (path[-1].op is Ops.CONTIGUOUS and _is_view(path[-1].src[0])):
        path.append(path[-1].src[0])
    return path


def memory_base(node: UOp) -> UOp:
    """The node whose memory a root can share: reshapes keep the row-major values."""
    return down_to_base(node)[-1]


def _is_view(node: UOp) -> bool:
    return node.op.group is OpGroup.MOVEMENT and node.op is not Ops.RESHAPE


def data_below(node: UOp, stored: Container[UOp]) -> set[UOp]:
    """The nodes with memory that the kernel of `node` may read."""
    below = (u for s in node.src for u in s.toposort(stop=stored.__contains__))
    return {u for u in below if u in stored}

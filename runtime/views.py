"""Parts of memory as memory of their own: in `X[i : i + n] @ w` the rows are what a kernel reads, wherever they begin.

Their place is in an address then, not in the kernel: one kernel, and one plan, serve every `i`. That is so for parts
that lie in one piece, of a leaf that is read in no other way: parts that overlap, as those of a stencil do, are read
together in one kernel, which has to know that they are one memory. Tests: tests/runtime/test_views.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod

from kernmill.ir import Ops, UOp

from .buffer import Buffer
from .device import get_device

__all__ = ["views"]

_MOST_PARTS = 64  # of one leaf: a kernel may read them all, and each is an argument
_SAME_ORDER = (Ops.RESHAPE, Ops.DETACH)


def views(order: Iterable[UOp], roots: Iterable[UOp]) -> dict[UOp, Buffer]:
    """The nodes of a graph, given in order, that are such parts, with the memory that they name."""
    places: dict[UOp, tuple[UOp, int]] = {}  # the leaf in which a node lies in one piece, and its first value there
    read = set(roots)
    for node in order:
        place = (node, 0) if node.storage is not None else _place(node, places)
        if place is not None:
            places[node] = place
        else:
            read.update(node.src)
    parts: dict[UOp, dict[UOp, None]] = {}  # in the order of the graph, which is the same in every process
    for node in places:
        if node in read:
            part = node
            while part.storage is None and part.op in _SAME_ORDER:
                part = part.src[0]
            parts.setdefault(places[node][0], {})[part] = None
    found: dict[UOp, Buffer] = {}
    room: dict[str, int] = {}  # for parts, by device: a kernel reads other memory as well
    for leaf, nodes in parts.items():
        device = leaf.storage.device
        if device not in room:
            room[device] = get_device(device).props().max_buffers // 2
        if leaf not in nodes and len(nodes) <= min(_MOST_PARTS, room[device]):
            inside = [_part(leaf.storage, places[node][1], prod(length for _, length in node.arg)) for node in nodes]
            by_address = sorted(inside, key=lambda part: part.address)
            if all(part.address + part.nbytes <= after.address for part, after in pairwise(by_address)):
                found |= zip(nodes, inside, strict=True)
                room[device] -= len(nodes)
    return found


def _place(node: UOp, places: dict[UOp, tuple[UOp, int]]) -> tuple[UOp, int] | None:
    """Where a node lies that reads one other node."""
    within = places.get(node.src[0]) if node.src else None
    if within is None or node.op in _SAME_ORDER:
        return within
    offset = _offset(node.src[0].shape, node.arg) if node.op is Ops.SHRINK else None
    return None if offset is None else (within[0], within[1] + offset)


def _offset(shape: Sequence[object], cuts: Sequence[tuple[object, object]]) -> int | None:
    """Where the first value of a SHRINK lies; None: it is empty, has no fixed place, or does not lie in one piece."""
    offset, stride, is_whole = 0, 1, True
    for size, (start, length) in zip(shape[::-1], cuts[::-1], strict=True):
        if not isinstance(size, int) or not isinstance(start, int) or not isinstance(length, int) or not length:
            return None
        if not is_whole and length > 1:
            return None
        is_whole &= length == size
        offset += start * stride
        stride *= size
    return offset


def _part(whole: Buffer, start: int, count: int) -> Buffer:
    return Buffer(whole.device, whole.dtype, count, whole, whole.address + start * whole.dtype.size_bytes)

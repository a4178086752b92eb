"""Parts of memory as memory of their own: in `X[i : i + n] @ w` the rows are what a kernel reads, wherever they begin.

Their place is in an address then, not in the kernel: one kernel, and one plan, serve every `i`. So with columns, whose
memory reaches from the first value to the last, with what lies between. That is so for parts of a leaf that is read in
no other way: parts that overlap, as those of a stencil do, are read together in one kernel, which has to know that
they are one memory. Tests: tests/runtime/test_views.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from kernmill.ir import Ops, UOp, numel, reshape

from .buffer import Buffer
from .device import get_device

__all__ = ["opened", "part_of", "views"]

_MOST_PARTS = 64  # of one leaf: a kernel may read them all, and each is an argument
_SAME_ORDER = (Ops.RESHAPE, Ops.DETACH)


def views(order: Iterable[UOp], roots: Iterable[UOp]) -> dict[UOp, Buffer]:
    """The nodes of a graph, given in order, that are such parts, with the memory that they name."""
    places: dict[UOp, tuple[UOp, int, int]] = {}  # the leaf in which a node lies, its first value there, how many
    read = set(roots)
    for node in order:
        place = (node, 0, node.storage.numel) if node.storage is not None else _place(node, places)
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
            room[device] = get_device(device).limits.max_buffers // 2
        if leaf not in nodes and len(nodes) <= min(_MOST_PARTS, room[device]):
            inside = [part_of(leaf.storage, *places[node][1:]) for node in nodes]
            by_address = sorted(inside, key=lambda part: part.address)
            if all(part.address + part.nbytes <= after.address for part, after in pairwise(by_address)):
                found |= zip(nodes, inside, strict=True)
                room[device] -= len(nodes)
    return found


def opened(node: UOp, memory: UOp) -> UOp:
    """A leaf, or such a part, as an expression of the PARAM of its memory."""
    if memory.arg[1] == numel(node.shape):
        return reshape(memory, node.shape)
    shape = node.src[0].shape
    whole = UOp(Ops.PAD, memory.dtype, (memory,), ((0, numel(shape)),))
    return UOp(Ops.SHRINK, memory.dtype, (reshape(whole, shape),), tuple([(0, length) for _, length in node.arg]))


def _place(node: UOp, places: dict[UOp, tuple[UOp, int, int]]) -> tuple[UOp, int, int] | None:
    """Where a node lies that reads one other node, which lies in one piece: in which leaf, from which value on, and how
    many there are up to its last one; None: it is no part, is empty, or has no fixed place."""
    source = node.src[0] if node.src else node
    within = places.get(source)
    if within is None or node.op not in (*_SAME_ORDER, Ops.SHRINK) or within[2] != numel(source.shape):
        return None
    if node.op is not Ops.SHRINK:
        return within
    leaf, first, _ = within
    count = stride = 1
    for size, (start, length) in zip(source.shape[::-1], node.arg[::-1], strict=True):
        if not isinstance(size, int) or not isinstance(start, int) or not isinstance(length, int) or not length:
            return None
        first += start * stride
        count += (length - 1) * stride
        stride *= size
    return leaf, first, count


def part_of(whole: Buffer, first: int, count: int) -> Buffer:
    """Values of a buffer as memory of their own."""
    return Buffer(whole.device, whole.dtype, count, whole, whole.address + first * whole.dtype.size_bytes)

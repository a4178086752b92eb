"""Contiguous slices are passed as offset pointers: one kernel for `X[i : i + n] @ w` serves every i.

The offset is in an address then, not in the kernel, so one kernel, and one plan, serve every `i`. This includes
columns, whose memory reaches from the first value to the last, with everything between. It applies to slices of a leaf
without other uses. Overlapping slices, such as those of a stencil, are read together in one kernel, which must know
that they are the same memory. Tests: tests/runtime/plans/test_views.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise

from kernmill.ir import Ops, UOp, numel, reshape

from ..device import get_device
from ..memory.buffer import Buffer

__all__ = ["opened", "part_of", "views"]

_MOST_PARTS = 64  # of one leaf: a kernel may read them all, and each is an argument
_SHRINK, _SAME_ORDER = Ops.SHRINK, (Ops.RESHAPE, Ops.DETACH)


def views(order: Collection[UOp], roots: Iterable[UOp]) -> dict[UOp, Buffer]:
    """Return the nodes of a graph, given in order, that are such slices, with their memory."""
    if not any(map(_is_of_memory, [node for node in order if node.op is _SHRINK])):
        return {}
    places: dict[UOp, tuple[UOp, int, int]] = {}  # the leaf of a node, its first value there, how many
    read = set(roots)
    for node in order:
        place = (node, 0, node.storage.numel) if node.storage is not None else _slice_of(node, places)
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
    room: dict[str, int] = {}  # for slices, by device: a kernel reads other memory as well
    for leaf, nodes in parts.items():
        device = leaf.storage.device
        if device not in room:
            room[device] = get_device(device).limits.max_buffers // 2
        if leaf not in nodes and len(nodes) <= min(_MOST_PARTS, room[device]):
            inside = [part_of(leaf.storage, *places[node][1:]) for node in nodes]
            by_address = sorted(inside, key=lambda part: part.address)
            step = get_device(device).limits.slice_alignment
            if step > 1 and any(part.address % step for part in inside):
                continue
            if all(part.address + part.nbytes <= after.address for part, after in pairwise(by_address)):
                found |= zip(nodes, inside, strict=True)
                room[device] -= len(nodes)
    return found


def opened(node: UOp, memory: UOp) -> UOp:
    """Return a leaf, or such a slice, as an expression of the PARAM of its memory."""
    if memory.arg[1] == numel(node.shape):
        return reshape(memory, node.shape)
    shape = node.src[0].shape
    whole = UOp(Ops.PAD, memory.dtype, (memory,), ((0, numel(shape)),))
    return UOp(Ops.SHRINK, memory.dtype, (reshape(whole, shape),), tuple([(0, length) for _, length in node.arg]))


def _is_of_memory(node: UOp) -> bool:
    """True if a SHRINK takes values that are in memory, in their order."""
    while node.storage is None and node.op in (*_SAME_ORDER, _SHRINK):
        node = node.src[0]
    return node.storage is not None


def _slice_of(node: UOp, places: dict[UOp, tuple[UOp, int, int]]) -> tuple[UOp, int, int] | None:
    """Return the leaf of a node with one contiguous source, the first value in it, and how many there are up to its
    last one. None: it is not a slice, is empty, or has no fixed offset."""
    source = node.src[0] if node.src else node
    within = places.get(source)
    if within is None or node.op not in (*_SAME_ORDER, _SHRINK) or within[2] != numel(source.shape):
        return None
    if node.op is not _SHRINK:
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
    """Return values of a buffer as a separate buffer."""
    return Buffer(whole.device, whole.dtype, count, whole, whole.address + first * whole.dtype.size_bytes)

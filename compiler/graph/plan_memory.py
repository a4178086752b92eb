"""Memory planning: intermediates share one arena per device, each from its first write to its last read.

Assumes: items run in order. Guarantees: two intermediates whose lifetimes touch never overlap. The largest are placed
first, each at the lowest offset that is free during its life. Tests: tests/compiler/graph/test_plan_memory.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate

from kernmill.ir import PAGE_BYTES, BufferPlan, Copy, GraphPlan, Item, MemoryPlan

__all__ = ["plan_memory"]

_ALIGNMENT = 128  # bytes; also keeps a cache line pair between neighbours
_NO_ALIGNMENTS: Mapping[str, int] = {}


def buffers_of(item: Item) -> tuple[int, ...]:
    """The buffers that an item reads or writes."""
    return (item.source, item.target) if isinstance(item, Copy) else item.buffers


def outputs_of(item: Item) -> tuple[int, ...]:
    """The buffers that an item writes."""
    return (item.target,) if isinstance(item, Copy) else item.outputs


def plan_memory(plan: GraphPlan, alignments: Mapping[str, int] = _NO_ALIGNMENTS) -> MemoryPlan:
    """Assign an offset to every buffer that is neither an input nor a result; `alignments`: bytes, by device."""
    alive = Alive(plan.items, plan.buffers, alignments)
    sizes = alive.sizes
    result = MemoryPlan(unplanned_bytes=sum(sizes.values()), lower_bound_bytes=alive.most_bytes)
    arenas: dict[str, _Arena] = {}
    for number in sorted(sizes, key=lambda n: (-sizes[n], n)):
        device, size = plan.buffers[number].device, sizes[number]
        arena = arenas.setdefault(device, _Arena(size))
        offset = arena.placed(size, min(alive.touched[number]), max(alive.touched[number]))
        result.offsets[number] = offset
        result.arena_bytes[device] = max(result.arena_bytes.get(device, 0), offset + size)
    return result


class _Arena:
    """Memory of one device: ranges of bytes, each with the lives of the buffers in it, which never meet.

    Buffers come in order of size, the `largest` first.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.ranges: list[tuple[int, int]] = []  # (begin, end), by begin
        self.lives: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (born, dies), by born
        self.last = 0, 0, 0, 0  # size, offset, born and dies of the buffer before

    def placed(self, size: int, born: int, dies: int) -> int:
        """The lowest offset that is free during this life; it is taken."""
        last_size, last_offset, last_born, last_dies = self.last
        offset = first = 0
        # an offset that was not free then is not free now
        if size == last_size and born <= last_born and last_dies <= dies:
            offset = last_offset
            first = bisect_left(self.ranges, (offset - self.largest,))
        for n in range(first, len(self.ranges)):
            begin, end = self.ranges[n]
            if end <= offset or not _meets(self.lives[begin, end], born, dies):
                continue
            if offset + size <= begin:
                break
            offset = max(offset, end)
        found = offset, offset + size
        if found not in self.lives:
            insort(self.ranges, found)
        insort(self.lives.setdefault(found, []), (born, dies))
        self.last = size, offset, born, dies
        return offset


def _meets(lives: list[tuple[int, int]], born: int, dies: int) -> bool:
    """True if one of these lives, which do not meet each other, meets the life from `born` to `dies`."""
    before = bisect_right(lives, (dies, dies))
    return (before > 0 and lives[before - 1][1] >= born) or (before < len(lives) and lives[before][0] <= dies)


class Alive:
    """The items that use each intermediate, and the bytes of those that are live at the peak."""

    def __init__(
        self, items: Sequence[Item], buffers: Sequence[BufferPlan], alignments: Mapping[str, int] = _NO_ALIGNMENTS
    ) -> None:
        self.touched: dict[int, set[int]] = {}  # positions, by buffer
        for position, item in enumerate(items):
            for number in (part[0] if (part := buffers[n].part) else n for n in buffers_of(item)):
                if buffers[number].is_intermediate:
                    self.touched.setdefault(number, set()).add(position)
        self.sizes = {
            number: _size_bytes(buffers[number], max(_ALIGNMENT, alignments.get(buffers[number].device, 1)))
            for number in self.touched
        }
        changes = [0] * (1 + len(items))  # bytes more than at the position before
        for number, positions in self.touched.items():
            for position, size in self._ends(number, positions):
                changes[position] += size
        self.bytes_at = [*accumulate(changes)]  # each position
        self._worst = [(-size, position) for position, size in enumerate(self.bytes_at)]  # a heap; some are outdated
        heapify(self._worst)

    @property
    def most_bytes(self) -> int:
        """Bytes alive at the worst moment."""
        while -self._worst[0][0] != self.bytes_at[self._worst[0][1]]:
            heappop(self._worst)
        return -self._worst[0][0]

    def _ends(self, number: int, positions: set[int]) -> list[tuple[int, int]]:
        """Return the positions at which the bytes of a buffer come and go."""
        size = self.sizes[number]
        return [(min(positions), size), (max(positions) + 1, -size)] if positions else []

    def moved(self, old: set[int], new: int, numbers: Iterable[int], kept: Container[int]) -> bool:
        """Merge items `old` into one at `new` that uses only the buffers `kept` of `numbers`.

        Return False and change nothing if that takes more bytes than before.
        """
        changes: dict[int, int] = {}
        touched: dict[int, set[int]] = {}
        for number in numbers:
            if number in self.touched:
                touched[number] = self.touched[number] - old | ({new} if number in kept else set())
                for position, size in self._ends(number, self.touched[number]):
                    changes[position] = changes.get(position, 0) - size
                for position, size in self._ends(number, touched[number]):
                    changes[position] = changes.get(position, 0) + size
        ends = [position for position, size in changes.items() if size]
        if ends:  # outside of them all stays as it was
            begin, end = min(ends), max(ends)
            more = accumulate(changes.get(position, 0) for position in range(begin, end))
            sizes = [size + extra for size, extra in zip(self.bytes_at[begin:end], more, strict=True)]
            if max(sizes) > self.most_bytes:
                return False
            self.bytes_at[begin:end] = sizes
            for position, size in enumerate(sizes, begin):
                heappush(self._worst, (-size, position))
        self.touched |= touched
        return True


def _size_bytes(plan: BufferPlan, alignment: int) -> int:
    size = -(-max(1, plan.numel * plan.dtype.size_bytes) // alignment) * alignment
    # neighbours would be in the same cache sets: a kernel that adds up 32 buffers read all of them from L2
    return size + alignment if size % PAGE_BYTES == 0 and alignment < PAGE_BYTES else size

"""Which intermediates may share memory: places in one arena per device, from when they are written to when they are
last read.

Assumes: items run in order. Guarantees: two intermediates whose lifetimes touch never overlap. The largest are placed
first, each at the lowest place that is free during its life. Tests: tests/compiler/test_memory_plan.py.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Iterable, Sequence
from itertools import accumulate

from kernmill.ir import BufferPlan, Copy, GraphPlan, Item, MemoryPlan

__all__ = ["plan_memory"]

_ALIGNMENT = 128  # bytes; also keeps one cache line pair between neighbours


def buffers_of(item: Item) -> tuple[int, ...]:
    """The buffers that an item reads or writes."""
    return (item.source, item.target) if isinstance(item, Copy) else item.buffers


def outputs_of(item: Item) -> tuple[int, ...]:
    """The buffers that an item writes."""
    return (item.target,) if isinstance(item, Copy) else item.outputs


def plan_memory(plan: GraphPlan) -> MemoryPlan:
    """Places for every buffer that is neither an input nor a result."""
    alive = Alive(plan.items, plan.buffers)
    sizes = alive.sizes
    result = MemoryPlan(unplanned_bytes=sum(sizes.values()), lower_bound_bytes=alive.most_bytes)
    placed: dict[str, list[tuple[int, int, int, int]]] = {}  # device -> (begin, end, first, last), by begin
    for number in sorted(sizes, key=lambda n: (-sizes[n], n)):
        device, size = plan.buffers[number].device, sizes[number]
        born, dies = min(alive.touched[number]), max(alive.touched[number])
        others = placed.setdefault(device, [])
        offset = 0
        for begin, end, other_born, other_dies in others:
            if other_dies < born or dies < other_born:
                continue
            if offset + size <= begin:
                break
            offset = max(offset, end)
        insort(others, (offset, offset + size, born, dies))
        result.offsets[number] = offset
        result.arena_bytes[device] = max(result.arena_bytes.get(device, 0), offset + size)
    return result


class Alive:
    """Which items touch each intermediate, and the bytes of those that live at the worst moment."""

    def __init__(self, items: Sequence[Item], buffers: Sequence[BufferPlan]) -> None:
        self.touched: dict[int, set[int]] = {}  # positions, by buffer
        for position, item in enumerate(items):
            for number in (part[0] if (part := buffers[n].part) else n for n in buffers_of(item)):
                if buffers[number].is_intermediate:
                    self.touched.setdefault(number, set()).add(position)
        self.sizes = {number: _size_bytes(buffers[number]) for number in self.touched}
        self.changes = [0] * (1 + len(items))  # bytes more than at the position before
        for number, positions in self.touched.items():
            self._count(self.changes, number, positions, 1)
        self.most_bytes = max(accumulate(self.changes))

    def _count(self, changes: list[int], number: int, positions: set[int], sign: int) -> None:
        if positions:
            changes[min(positions)] += sign * self.sizes[number]
            changes[max(positions) + 1] -= sign * self.sizes[number]

    def moved(self, old: set[int], new: int, numbers: Iterable[int], kept: Container[int]) -> bool:
        """The items at `old` become one at `new`, which touches of their buffers, `numbers`, those that are `kept`.

        False, and nothing is changed, where that takes more bytes than before.
        """
        changes, touched = [*self.changes], {}
        for number in numbers:
            if number in self.touched:
                touched[number] = self.touched[number] - old | ({new} if number in kept else set())
                self._count(changes, number, self.touched[number], -1)
                self._count(changes, number, touched[number], 1)
        most_bytes = max(accumulate(changes))
        if most_bytes > self.most_bytes:
            return False
        self.most_bytes, self.changes = most_bytes, changes
        self.touched |= touched
        return True


def _size_bytes(plan: BufferPlan) -> int:
    return -(-max(1, plan.numel * plan.dtype.size_bytes) // _ALIGNMENT) * _ALIGNMENT

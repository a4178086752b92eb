"""Which intermediates may share memory: places in one arena per device, from when they are written to when they are
last read.

Assumes: items run in order. Guarantees: two intermediates whose lifetimes touch never overlap. The largest are placed
first, each at the lowest place that is free during its life. Tests: tests/compiler/test_memory_plan.py.
"""

from __future__ import annotations

from bisect import insort
from itertools import accumulate

from kernmill.ir import Copy, Item, MemoryPlan, Schedule

__all__ = ["plan_memory"]

_ALIGNMENT = 128  # bytes; also keeps one cache line pair between neighbours


def buffers_of(item: Item) -> tuple[int, ...]:
    """The buffers that an item reads or writes."""
    return (item.source, item.target) if isinstance(item, Copy) else item.buffers


def plan_memory(schedule: Schedule) -> MemoryPlan:
    """Places for every buffer that is neither an input nor a result."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, item in enumerate(schedule.items):
        for number in buffers_of(item):
            plan = schedule.buffers[number]
            if plan.slot is None and not plan.is_output:
                first.setdefault(number, position)
                last[number] = position
    sizes = {n: _padded(schedule.buffers[n].numel * schedule.buffers[n].dtype.size_bytes) for n in first}
    result = MemoryPlan(unplanned_bytes=sum(sizes.values()), lower_bound_bytes=_most_alive(first, last, sizes))
    placed: dict[str, list[tuple[int, int, int, int]]] = {}  # device -> (begin, end, first, last), by begin
    for number in sorted(sizes, key=lambda n: (-sizes[n], n)):
        device, size = schedule.buffers[number].device, sizes[number]
        born, dies = first[number], last[number]
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


def _most_alive(first: dict[int, int], last: dict[int, int], sizes: dict[int, int]) -> int:
    """Bytes that live at the worst moment."""
    changes = [0] * (2 + max(last.values(), default=0))
    for number, size in sizes.items():
        changes[first[number]] += size
        changes[last[number] + 1] -= size
    return max(accumulate(changes))


def _padded(size_bytes: int) -> int:
    return -(-max(1, size_bytes) // _ALIGNMENT) * _ALIGNMENT

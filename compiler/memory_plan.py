"""Which intermediates may share memory: places in one arena per device, from when they are written to when they are
last read.

Assumes: items run in order. Guarantees: two intermediates whose lifetimes touch never overlap. The largest are placed
first, each at the lowest place that is free during its life. Tests: tests/compiler/test_memory_plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .kernel import Copy, Item, Schedule

__all__ = ["MemoryPlan", "plan_memory"]

_ALIGNMENT = 128  # bytes; also keeps one cache line pair between neighbours


@dataclass(slots=True)
class MemoryPlan:
    """Byte offsets of intermediates in their device's arena; `lower_bound_bytes` is alive at the worst moment."""

    offsets: dict[int, int] = field(default_factory=dict[int, int])
    arena_bytes: dict[str, int] = field(default_factory=dict[str, int])
    lower_bound_bytes: int = 0
    unplanned_bytes: int = 0


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
    result = MemoryPlan(unplanned_bytes=sum(sizes.values()))
    for position in range(len(schedule.items)):
        alive = sum(size for n, size in sizes.items() if first[n] <= position <= last[n])
        result.lower_bound_bytes = max(result.lower_bound_bytes, alive)
    for number in sorted(sizes, key=lambda n: (-sizes[n], n)):
        device = schedule.buffers[number].device
        offset = 0
        for other in sorted(result.offsets, key=result.offsets.__getitem__):
            if schedule.buffers[other].device != device or last[other] < first[number] or last[number] < first[other]:
                continue
            if offset + sizes[number] <= result.offsets[other]:
                break
            offset = max(offset, result.offsets[other] + sizes[other])
        result.offsets[number] = offset
        result.arena_bytes[device] = max(result.arena_bytes.get(device, 0), offset + sizes[number])
    return result


def _padded(size_bytes: int) -> int:
    return -(-max(1, size_bytes) // _ALIGNMENT) * _ALIGNMENT

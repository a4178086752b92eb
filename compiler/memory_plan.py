"""Which intermediates may share memory: places in one arena per device, from when they are written to when they are
last read.

Assumes: items run in order. Guarantees: two intermediates whose lifetimes touch never overlap. The largest are placed
first, each at the lowest place that is free during its life. Tests: tests/compiler/test_memory_plan.py.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import accumulate

from kernmill.ir import BufferPlan, Copy, Item, MemoryPlan, Schedule

__all__ = ["plan_memory"]

_ALIGNMENT = 128  # bytes; also keeps one cache line pair between neighbours


def buffers_of(item: Item) -> tuple[int, ...]:
    """The buffers that an item reads or writes."""
    return (item.source, item.target) if isinstance(item, Copy) else item.buffers


def outputs_of(item: Item) -> tuple[int, ...]:
    """The buffers that an item writes."""
    return (item.target,) if isinstance(item, Copy) else item.outputs


def plan_memory(schedule: Schedule) -> MemoryPlan:
    """Places for every buffer that is neither an input nor a result."""
    lives = _lives(schedule.items, schedule.buffers)
    sizes = {n: _size_bytes(schedule.buffers[n]) for n in lives}
    alive_bytes = most_alive(schedule.items, schedule.buffers)
    result = MemoryPlan(unplanned_bytes=sum(sizes.values()), lower_bound_bytes=alive_bytes)
    placed: dict[str, list[tuple[int, int, int, int]]] = {}  # device -> (begin, end, first, last), by begin
    for number in sorted(sizes, key=lambda n: (-sizes[n], n)):
        device, size = schedule.buffers[number].device, sizes[number]
        born, dies = lives[number]
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


def most_alive(items: Sequence[Item | None], buffers: Sequence[BufferPlan]) -> int:
    """Bytes of intermediates that live at the worst moment."""
    changes = [0] * (1 + len(items))
    for number, (first, last) in _lives(items, buffers).items():
        changes[first] += _size_bytes(buffers[number])
        changes[last + 1] -= _size_bytes(buffers[number])
    return max(accumulate(changes))


def _lives(items: Sequence[Item | None], buffers: Sequence[BufferPlan]) -> dict[int, tuple[int, int]]:
    """The first and the last item that touch each intermediate."""
    lives: dict[int, tuple[int, int]] = {}
    for position, item in enumerate(items):
        for number in buffers_of(item) if item is not None else ():
            if buffers[number].is_intermediate:
                lives[number] = (lives.get(number, (position,))[0], position)
    return lives


def _size_bytes(plan: BufferPlan) -> int:
    return -(-max(1, plan.numel * plan.dtype.size_bytes) // _ALIGNMENT) * _ALIGNMENT

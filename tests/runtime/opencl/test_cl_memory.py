"""A driver's buffers are reused, given back when there is no room, and found by address."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kernmill.ir import OutOfMemoryError
from kernmill.runtime import cl_memory


class Refusal(Exception):
    """The binding's error."""

    code = -4


class Driver:
    """Buffers out of so many bytes."""

    Error = Refusal
    CommandQueue = staticmethod(lambda context, device: SimpleNamespace())
    mem_flags = SimpleNamespace(READ_WRITE=1, USE_HOST_PTR=8)

    def __init__(self, room: int) -> None:
        self.room = room

    def Buffer(self, context: Any, flags: int, size: int) -> Any:
        if size > self.room:
            raise Refusal("MEM_OBJECT_ALLOCATION_FAILURE")
        self.room -= size

        def release() -> None:
            self.room += size

        return SimpleNamespace(release=release, size=size)


def allocator(room: int, total: int | None = None) -> tuple[Any, Driver]:
    driver = Driver(room)
    facts: Any = SimpleNamespace(total_bytes=total or room, max_alloc_bytes=room, is_unified=False)
    queue = SimpleNamespace(finish=lambda: None, device=None)
    return cl_memory.ClAllocator(driver, None, queue, facts, "CL"), driver


def test_a_freed_block_is_the_next_of_its_size() -> None:
    memory, _ = allocator(1 << 24)
    one, two = memory.alloc(5000), memory.alloc(5000)
    assert one.address + one.capacity_bytes <= two.address
    memory.free(one)
    assert memory.alloc(6000) is one
    assert memory.alloc(5000) is not two


def test_no_more_is_kept_than_a_fourth_of_the_memory() -> None:
    memory, driver = allocator(1 << 20)
    blocks = [memory.alloc(1 << 17) for _ in range(4)]
    for block in blocks:
        memory.free(block)
    assert memory.held_bytes()[1] <= 1 << 18
    assert driver.room >= (1 << 20) - (1 << 18)


def test_what_is_kept_is_given_back_before_an_allocation_fails() -> None:
    memory, _ = allocator(100 << 10, total=1 << 20)
    memory.free(memory.alloc(60 << 10))
    assert memory.alloc(90 << 10).capacity_bytes >= 90 << 10
    with pytest.raises(
        OutOfMemoryError, match=r"CL: out of memory: a buffer of 90\.0 KiB\ cannot be allocated. .*Use smaller batches"
    ):
        memory.alloc(90 << 10)
    memory.trim()
    assert memory.held_bytes()[1] == 0


def test_an_error_of_another_kind_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, driver = allocator(1 << 12)
    driver.room = 0
    monkeypatch.setattr(Refusal, "code", -36)
    with pytest.raises(Refusal):
        memory.alloc(1 << 12)


def test_sizes_are_rounded_up_by_an_eighth_at_most() -> None:
    for size in (0, 1, 4096, 4097, 100_000, 1 << 20, (1 << 20) + 1):
        bucket = allocator(1 << 30)[0].bucket_bytes(size)
        assert bucket % 4096 == 0
        assert size <= bucket <= max(4096, size * 9 // 8 + 4096)
